"""The table of `jobs.py list`: its columns at each width and its filters."""

import json
import os
import pty
import re
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tools.testing.processes import run_python
from train_anywhere.errors import SubmitError
from train_anywhere.files import ROOT
from train_anywhere.runs.facts import RecordedProgress
from train_anywhere.runs.folder import FORMAT
from train_anywhere.runs.lock import RunLock
from train_anywhere.slurm.status import find_runs
from train_anywhere.slurm.status.find_runs import RunEntry, read_entry
from train_anywhere.slurm.status.gather import Report, make_report
from train_anywhere.slurm.status.text_page import list_runs, page, parse_since, select

NOW = time.time()


def report(number: int, **facts: object) -> Report:
    run = f"2026010{number}-000000-aaaa"
    known = Report(
        id=run,
        path=Path("/results/digits") / run,
        name="digits",
        state="completed",
        progress=RecordedProgress(step=210, steps=210),
        started=NOW - 7200 * number,
        took=65.0,
        best=("val/acc", 0.98765),
        overrides={"optimizer.lr": f"0.00{number}", "trainer.max_epochs": "3"},
    )
    return replace(known, **facts)  # type: ignore[arg-type]


RUNS = [report(1), report(2, state="failed", best=None), report(3, name="text", state="running")]


def test_everything_without_a_terminal() -> None:
    header, first, second, third = list_runs(RUNS, None).splitlines()
    assert header.split() == ["run", "name", "state", "progress", "val/acc", "age", "took", "differs"]
    assert first.split(maxsplit=3)[:3] == ["20260101-000000-aaaa", "digits", "completed"]
    assert "210/210" in first and "  0.9877" in first and first.endswith("lr=0.001")
    assert "max_epochs" not in first  # both runs of that name have the same
    assert " - " in second and second.endswith("lr=0.002")
    assert third.endswith("65 s")  # the only run of its name differs from no other


@pytest.mark.parametrize("width", [80, 100, 120])
def test_it_fits_the_terminal(width: int) -> None:
    runs = [
        replace(run, overrides={"optimizer.lr": str(n), "model.hidden": "[" + "64," * 12 + "]"})
        for n, run in enumerate(RUNS[:2])
    ]
    for line in list_runs(runs, width).splitlines():
        assert len(line) <= width
    assert all(run.id in list_runs(runs, width) for run in runs)


def test_runs_of_different_metrics_name_them() -> None:
    header, first, _ = list_runs([report(1), report(2, best=("val/loss", 0.5))], None).splitlines()
    assert "  best  " in header and "val/acc 0.9877" in first


def test_what_differs_is_shown_whole_below_a_run_if_it_does_not_fit_beside_it() -> None:
    """A narrow terminal drops the duration before the differences get their own line."""
    runs = [report(n, overrides={"optimizer.lr": str(n), "data.name": "a" * 40 * n}) for n in (1, 2)]
    header, first, below, second, *last = list_runs(runs, 80).splitlines()
    assert "took" not in header and header.endswith("differs")
    assert [first.split()[0], second.split()[0]] == [run.id for run in runs]
    assert [below, *last] == [f"    lr=1  name={'a' * 40}", "    lr=2", f"    name={'a' * 80}"]
    wide = [replace(run, name="n" * 30) for run in [*runs, report(3, overrides={})]]
    shown = [line.split() for line in list_runs(wide, 80).splitlines()]
    assert [line[0] for line in shown[1:]] == [
        wide[0].id,
        "lr=1",
        wide[1].id,
        "lr=2",
        f"name={'a' * 80}",
        wide[2].id,
    ]


def test_states_have_colors_on_request() -> None:
    shown = list_runs(RUNS, 120, colors=True)
    colors = dict(re.findall(r"\x1b\[38;5;(\d+)m(\w+)", shown))
    assert colors == {"28": "completed", "160": "failed", "31": "running"}
    assert "\x1b" not in list_runs(RUNS, 120)


def test_a_name_can_not_write_to_the_terminal() -> None:
    assert "\x1b" not in list_runs([report(1, name="a\x1b[2J")], None)


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ((None, None, None), [1, 2, 3]),
        (("dig*", None, None), [1, 2]),
        ((None, "failed,running", None), [2, 3]),
        ((None, None, "3h"), [1]),
        (("digits", "failed", "5h"), [2]),
    ],
)
def test_filters(filters: tuple[str | None, ...], found: list[int]) -> None:
    assert [int(run.id[7]) for run in select(RUNS, *filters)] == found


def test_a_time() -> None:
    assert abs(parse_since("2h").timestamp() - (time.time() - 7200)) < 60
    assert parse_since("2026-11-26T08:00").hour == 8
    with pytest.raises(SubmitError, match="soon is not a time: use 30m, 2h, 3d, 1w or a date"):
        parse_since("soon")


@pytest.mark.parametrize("colors", [True, False])
def test_the_command_colors_states_on_a_terminal_only(tmp_path: Path, colors: bool) -> None:
    folder = tmp_path / "digits" / "20260101-000000-aaaa"
    folder.mkdir(parents=True)
    (folder / "config.yaml").touch()
    (folder / "run.json").write_text('{"format": 2, "state": "failed"}')
    ours, theirs = pty.openpty()
    command = [sys.executable, str(ROOT / "src/jobs.py"), "list", "--results", str(tmp_path)]
    environ = {**os.environ, "TERM": "xterm", **({} if colors else {"NO_COLOR": "1"})}
    subprocess.run(command, stdout=theirs, stderr=theirs, env=environ, check=True, timeout=60)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    assert ("\x1b[38;5;160mfailed\x1b[0m" in shown) == colors and "failed" in shown


def made(folder: Path, **info: object) -> RunEntry:
    """Return a run of this machine that has such a run.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").touch()
    (folder / "run.json").write_text(json.dumps({"format": 2, **info}))
    return read_entry(folder)


def test_a_killed_run_did_not_take_until_now(tmp_path: Path) -> None:
    start = "2026-01-01T00:00:00+00:00"
    assert make_report(made(tmp_path / "a", state="running", started=start), None, {}, False).took is None
    ended = made(tmp_path / "b", state="failed", started=start, ended="2026-01-01T00:01:00+00:00")
    assert make_report(ended, None, {}, False).took == 60


def test_a_failed_run_shows_its_reason(tmp_path: Path) -> None:
    attempt = {"ended_by": "failed", "reason": "ValueError: no rows, at mine.py:3 in step"}
    shown = page(make_report(made(tmp_path, state="failed", attempts=[attempt]), None, {}, False))
    assert "Why:         ValueError: no rows, at mine.py:3 in step" in shown.splitlines()


def test_a_run_that_never_started_is_not_starting_for_ever(tmp_path: Path) -> None:
    run = made(tmp_path, state="queued")
    assert find_runs.read_state(run)[0] == "starting"
    os.utime(tmp_path / "config.yaml", (NOW - 3600, NOW - 3600))
    (tmp_path / "other").touch()  # the folder changes, as it does when the disk has no unnamed files
    assert find_runs.read_state(run)[0] == "lost"


def test_a_lock_of_another_user_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, killed = made(tmp_path, state="running"), []
    monkeypatch.setattr(os, "kill", lambda *arguments: killed.append(arguments))
    with RunLock(run.folder):
        find_runs.stop_process(run)
        assert killed.pop()[0] == os.getpid()
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        with pytest.raises(SubmitError, match="stop it there with `kill"):
            find_runs.stop_process(run)
    assert not killed


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ((None, "faild", None), "'faild' is not a state of a run. Did you mean 'failed'?"),
        ((None, "failed,", None), "--state is empty"),
        ((None, "", None), "--state is empty"),
        (("", None, None), "--name is empty"),
        ((None, None, ""), "the time is empty"),
    ],
)
def test_filters_that_select_nothing_by_mistake(filters: tuple[str | None, ...], message: str) -> None:
    with pytest.raises(SubmitError, match=message.replace("?", r"\?")):
        select([], *filters)
    assert select([], "x", "failed,RUNNING", "2h") == []


def list_of(results: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return run_python("-X", "utf8", str(ROOT / "src" / "jobs.py"), "list", "--results", str(results), *words)


def test_the_newest_50_runs_are_listed_and_all_on_request(tmp_path: Path) -> None:
    for number in range(120):
        run = tmp_path / ("old" if number < 60 else "new") / f"20260101-{number:06}-aaaa"
        run.mkdir(parents=True)
        (run / "config.yaml").write_text("name: x\n")
        state = "failed" if number % 2 else "completed"
        (run / "run.json").write_text(json.dumps({"format": FORMAT, "state": state}))

    def numbers(*words: str) -> list[int]:
        rows = list_of(tmp_path, *words).stdout.splitlines()[1:]
        return [int(row.split("-")[1]) for row in rows]

    assert numbers() == [*range(119, 69, -1)]
    assert list_of(tmp_path).stderr == "note: 70 older runs are not listed; --all lists them.\n"
    assert numbers("--all") == [*range(119, -1, -1)]
    assert list_of(tmp_path, "--all").stderr == ""
    assert numbers("--name", "old") == [*range(59, 9, -1)]
    assert numbers("--state", "failed") == [*range(119, 19, -2)]
    assert list_of(tmp_path, "--state", "failed").stderr.startswith("note: 10 older runs")


def test_more_runs_cost_little(tmp_path: Path) -> None:
    """Only the names of older runs are read."""
    used = {}
    for count in (50, 5000):
        results = tmp_path / str(count)
        for number in range(count):
            run = results / "x" / f"20260101-{number:06}-aaaa"
            run.mkdir(parents=True)
            (run / "config.yaml").write_text("name: x\n")
            (run / "run.json").write_text(json.dumps({"format": FORMAT, "state": "completed"}))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert len(list_of(results).stdout.splitlines()) == 51
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used[count] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used[5000] < 3 * used[50]
