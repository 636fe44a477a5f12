"""A wrong command line gets every problem in one message without a traceback, and nothing is written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from train_anywhere.config.command.compose import compose, list_groups
from train_anywhere.config.command.diagnose import LONGEST, diagnose, explain_refusal, shorten
from train_anywhere.errors import ConfigError, DataError
from train_anywhere.files import ROOT


def test_everything_at_once() -> None:
    wrong = (
        "framework=keras strategy=ddp trainer.max_epochs=abc trainer.nodes=0 modell=cnn data.batch_size=0 foo"
    )
    found = diagnose(wrong.split(), ConfigError("first.")).problems[1:]
    parts = ["strategy=ddp does", "max_epochs='abc'", "nodes=0", "'model'?", "batch_size=0", "'foo'"]
    assert len(found) == 6 and [p for p in parts if not any(p in problem for problem in found)] == []


def test_a_class_where_a_choice_belongs() -> None:
    found = diagnose(["task=mine.LitModule", "callbacks=[mine.Watch]"], ConfigError()).problems
    said = "is not a choice; to name a class or function, type"
    assert f"task=mine.LitModule {said} task._target_=mine.LitModule." in found
    assert any("type callbacks.NAME._target_=mine.Watch." in problem for problem in found)


@pytest.mark.parametrize(
    "redirection, code, says",
    [
        (">/dev/full", 2, "error: standard output can't be written (No space left on device)."),
        ("2>/dev/full seed=x", 2, ""),
        ("<&-", 0, ""),
        ("2>&-", 0, ""),
        (">&-", 0, ""),
        ("| head -1", 0, ""),
    ],
)
@pytest.mark.quick("| head -1-0-", "2>&--0-")
def test_odd_streams(tmp_path: Path, redirection: str, code: int, says: str) -> None:
    command = (
        f"{sys.executable} {ROOT}/src/train.py dry_run=true paths.results={tmp_path}/größe {redirection}"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    shell = ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == code, done.stderr
    assert done.stderr.strip() == says
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        f"{ROOT}/src/train.py dry_run=true", f"{ROOT}/src/run.py resume=x", f"{ROOT}/src/run.py -- x.py", f"{ROOT}/src/evaluate.py x",
    ],
)  # fmt: skip
def test_a_current_folder_that_was_deleted(tmp_path: Path, command: str) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    shell = f"cd {gone} && rmdir {gone} && {sys.executable} {command}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (
        2,
        "error: the current folder was deleted: cd to one that exists.\n",
    )


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("optimizer.groups={match: a}", "optimizer.groups is a list, not a section of keys"),
        ("optimizer.groups.0.lr=3", "optimizer.groups is a list, not a section of keys"),
        ("optimizer.betas={a: 1}", "optimizer.betas is a list, not a section of keys"),
        ("trainer=[1]", "trainer is a section of keys, not a list"),
        ("++model.from_data=[a]", "model.from_data is a section of keys, not a list"),
    ],
)
def test_lists_and_sections_are_not_exchanged(argument: str, message: str) -> None:
    [problem] = diagnose([argument, "dry_run=true"], ValueError()).problems
    assert problem.startswith(message)


def raised(code: object) -> Exception:
    assert callable(code)
    try:
        code()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_errors_without_a_file_name_the_place() -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    assert (explain_refusal(raised(full), []) or "").startswith(
        "No space left on device (in test_diagnose.py, line "
    )
    broken = explain_refusal(raised(lambda: json.loads("{")), []) or ""
    assert broken.startswith("Expecting property name") and "decoder.py" in broken


def test_bugs_keep_their_traceback() -> None:
    assert explain_refusal(raised(lambda: int(None)), []) is None  # type: ignore[call-overload]
    assert explain_refusal(raised(lambda: {}["a"]), []) is None
    assert explain_refusal(DataError("this is missing."), []) == "this is missing."


@pytest.mark.parametrize(
    "override, sentence",
    [
        ("name=${nothing}", "name: Interpolation key 'nothing' not found"),
        ("optimizer@trainer=sgd", "Could not override 'optimizer@trainer'. Did you mean to override optimizer?"),
        ("hydra/launcher=nope", "Could not find 'hydra/launcher/nope' Available options in 'hydra/launcher'"),
        ("data=null", f"data=null: a run needs one of {', '.join(list_groups()['data'][:6])} and {len(list_groups()['data']) - 6} more."),
        ("+experiment=debug", "'+experiment=debug': experiment is already in the configuration; write it without +."),
    ],
)  # fmt: skip
def test_hydra_s_errors_are_one_line(override: str, sentence: str) -> None:
    message = explain_refusal(raised(lambda: compose([override])), [override]) or ""
    assert sentence in message
    assert "\n" not in message


def test_the_diagnosis_itself_can_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> list[str]:
        raise RuntimeError("a bug in the diagnosis")

    first = raised(lambda: compose(["seed=${nothing}"]))
    monkeypatch.setattr("train_anywhere.config.command.diagnose._all_problems", broken)
    assert str(diagnose(["seed=${nothing}"], first)) == "seed: Interpolation key 'nothing' not found"
    assert str(diagnose(["a=1"], ConfigError("a is odd."))).startswith("2 problems:\n  - a is odd.")


def test_a_long_value_does_not_hide_the_sentence() -> None:
    short = shorten("name=" + "x" * 100_000 + " is too long.")
    assert len(short) < LONGEST
    assert short.endswith("x is too long.")
