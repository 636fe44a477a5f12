"""Strings from files are printed without codes that a terminal obeys."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from train_anywhere.commands import jobs, scaling
from train_anywhere.config.schema import Config
from train_anywhere.files.terminal.printable import (
    Printable,
    one_line,
    printable,
    printable_log,
    printable_output,
)
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.resume import completion_message
from train_anywhere.slurm.status import show_logs

Make = Callable[..., tuple[Config, RunDir]]

EVIL = "\x1b]0;OWNED\x07\x1b[2J\x9b2J\u202e\u2066\u200f\u2028\x7f\r\x08"
"""Sets the title of the window, clears the screen, turns text round, begins new lines."""

OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def test_control_characters_are_escaped() -> None:
    for text, shown in (
        ("a\tb\nc é 漢 ❤️ नि\u200dज \u0645\u06cc\u200c\u062e", None),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x9b2J\x00\x7f", "\\x9b2J\\x00\\x7f"),
        ("\u202eevil\u2069\u200f\u2028\ufeff\u061c", "\\u202eevil\\u2069\\u200f\\u2028\\ufeff\\u061c"),
        ("\U000e0041", "\\U000e0041"),
    ):
        assert printable(text) == (text if shown is None else shown)


def test_a_name_stays_in_its_line() -> None:
    assert one_line("acc\nNext: \trm") == "acc\\nNext: \\trm"


def test_a_log_keeps_colors_and_progress_bars() -> None:
    for text, shown in (
        ("\x1b[1;31mred\x1b[0m\n", None),
        ("10%\r20%\x08\x08\n", None),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1b]0;title\x1b\\b", "ab"),
        ("a\x1b[2J\x1b[H\x1b[?25lb", "ab"),
        ("a\x1b", "a\\x1b"),  # the rest may come with the next write
        ("[2J \x1b(0 \x9b2J \x0c", "[2J \\x1b(0 \\x9b2J \\x0c"),
        ("\u202e", "\\u202e"),
    ):
        assert printable_log(text) == (text if shown is None else shown)


def test_the_streams_are_those_of_before_afterwards() -> None:
    before = sys.stdout, sys.stderr
    with printable_output():
        assert isinstance(sys.stdout, Printable) and isinstance(sys.stderr, Printable)
        assert sys.stdout.isatty() is before[0].isatty() and sys.stdout.encoding == before[0].encoding
    assert (sys.stdout, sys.stderr) == before
    with printable_output():
        sys.stdout = None  # type: ignore[assignment]
    closed, sys.stdout = sys.stdout, before[0]
    assert closed is None


@pytest.fixture
def evil(make_run: Make) -> tuple[Config, RunDir]:
    """A run with terminal codes in each string that this project shows."""
    config, run = make_run("trainer.max_epochs=1")
    run.update(
        state="completed",
        metrics={f"test/acc{EVIL}": 0.5, f"val/acc{EVIL}\nNext: rm": 0.6},
        hosts=[f"node{EVIL}"],
        epoch=0,
        step=3,
        unit=f"rows{EVIL}",
        why=EVIL,
        checkpoint=f"/x/{EVIL}",
        attempts=[{"job": EVIL, "hosts": [EVIL], "step": 3, "ended_by": EVIL}],
    )
    run.metrics_csv.write_text(f"step,epoch,val/acc{EVIL}\n1,0,0.5\n")
    run.overrides.write_text(f"trainer.max_epochs=1\n+x='{EVIL}'\n")
    run.monitor.mkdir(exist_ok=True)
    (run.monitor / "watch.json").write_text(json.dumps({"verdicts": [EVIL], "said": EVIL}))
    return config, run


@pytest.mark.parametrize(
    "words", [["status"], ["status", "--json"], ["list"], ["best"], ["logs"], ["cancel"],
              ["resubmit"]],
)  # fmt: skip
@pytest.mark.quick("words6", "words3")
def test_jobs_prints_no_code_for_a_terminal(
    evil: tuple[Config, RunDir], words: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = evil[1]
    where = [] if words[0] in ("list", "best") else [str(run.path)]
    jobs.main([*words, *where, "--results", str(run.path.parent.parent)])
    said, error = capsys.readouterr()
    assert not OBEYED.search(said + error) and "\nNext: rm" not in said
    assert said + error
    if words[0] == "status" and words[-1] != "--json":
        assert "val/acc\\x1b]0;OWNED\\x07\\x1b[2J\\x9b2J\\u202e" in said


def test_a_damaged_jobs_txt_and_a_wrong_name_are_shown_escaped(
    evil: tuple[Config, RunDir], capsys: pytest.CaptureFixture[str]
) -> None:
    run = evil[1]
    run.jobs.write_text(EVIL)
    for name in (str(run.path), EVIL):
        assert jobs.main(["cancel", name]) == 2
        assert not OBEYED.search(capsys.readouterr().err)


def test_a_report_and_a_complete_run_say_it_escaped(
    evil: tuple[Config, RunDir], capsys: pytest.CaptureFixture[str]
) -> None:
    config, run = evil
    assert jobs.main(["report", str(run.path)]) == 0
    assert not OBEYED.search(capsys.readouterr().out)
    said = completion_message(run, config)
    assert not OBEYED.search(said) and "test/acc\\x1b]0;OWNED" in said


def test_a_scaling_table_says_it_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / f"table{EVIL}"
    assert scaling.main([str(folder)]) == 2
    assert not OBEYED.search(capsys.readouterr().err)


def test_a_log_is_shown_with_its_colors_only(
    evil: tuple[Config, RunDir], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = evil[1]
    (run.path / "job.sbatch").touch()
    run.jobs.write_text("7\n")
    (run.path / "slurm-7.out").write_text(f"{EVIL}\x1b[32mgreen\x1b[0m 10%\r20%\n")
    assert jobs.main(["logs", str(run.path)]) == 0
    assert (
        capsys.readouterr().out
        == "\\x9b2J\\u202e\\u2066\\u200f\\u2028\\x7f\r\x08\x1b[32mgreen\x1b[0m 10%\r20%\n"
    )
    monkeypatch.setattr(show_logs, "poll_active", lambda *_: iter([False]))
    assert jobs.main(["logs", "-f", str(run.path)]) == 0
    said = capsys.readouterr().out
    assert "\x1b]" not in said and "\x1b[2J" not in said and "\x1b[32mgreen\x1b[0m 10%\r20%" in said
