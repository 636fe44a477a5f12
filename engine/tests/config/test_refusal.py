"""Which errors are a refusal with one sentence, and which are a bug with a traceback."""

import json

import pytest

from train_anywhere.config.command.compose import compose, list_groups
from train_anywhere.config.command.diagnose import LONGEST, diagnose, explain_refusal, shorten
from train_anywhere.errors import ConfigError, DataError


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
        "No space left on device (in test_refusal.py, line "
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
        (
            "optimizer@trainer=sgd",
            "Could not override 'optimizer@trainer'. Did you mean to override optimizer?",
        ),
        ("hydra/launcher=nope", "Could not find 'hydra/launcher/nope' Available options in 'hydra/launcher'"),
        (
            "data=null",
            f"data=null: a run needs one of {', '.join(list_groups()['data'][:6])} and {len(list_groups()['data']) - 6} more.",
        ),
        (
            "+experiment=debug",
            "'+experiment=debug': experiment is already in the configuration; write it without +.",
        ),
    ],
)
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
