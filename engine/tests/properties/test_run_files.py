"""Damage to small files of a run folder: the rest is shown, or one message explains."""

import copy
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tests.properties.cases import SCALARS, TEXT, bounded, composed
from tools.testing.frameworks import FIRST
from train_anywhere.errors import ProjectError
from train_anywhere.features import describe
from train_anywhere.features.stage import _read_record
from train_anywhere.files.atomic import dumps, finite, loads
from train_anywhere.job import restart
from train_anywhere.monitor.report import page as page_of_report
from train_anywhere.monitor.run_facts import read_facts
from train_anywhere.runs import lock
from train_anywhere.runs.folder import ATTEMPTS, FORMAT, RunDir
from train_anywhere.runs.recorder import read_reports
from train_anywhere.runs.study import Space, Study
from train_anywhere.search.loop import find_folder
from train_anywhere.slurm.status.best import find_best
from train_anywhere.slurm.status.find_runs import RunEntry
from train_anywhere.slurm.status.gather import gather
from train_anywhere.slurm.status.text_page import list_runs, page, to_json

START = "2026-01-01T00:00:00+00:00"
SECONDS = {"before": 1.0, "start": 2.0, "step": 70.0, "data": 20.0, "others": 30.0, "checkpoint": 9.0}
ATTEMPT = {
    "started": START, "until": "2026-01-01T01:00:00+00:00", "job": None, "hosts": ["n1"], "devices": 8, "from_step": 0, "seconds": SECONDS,
}  # fmt: skip
GOOD: dict[str, dict[str, Any]] = {
    "run.json": {
        "format": FORMAT,
        "state": "running", "framework": FIRST, "strategy": "auto", "cluster": "local", "world_size": 8, "hosts": ["n1"], "epoch": 1,
        "step": 14, "metrics": {"val/acc": 0.9}, "checkpoint": "/c", "rate": 3.5, "unit": "samples", "started": START, "ended": None,
        ATTEMPTS: [{**ATTEMPT, "step": 10, "ended_by": "failed"}, ATTEMPT],
    },
    "monitor/live.json": {
        "time": 4e9, "epoch": 1, "epochs": 3, "step": 14, "steps": 42, "section": "train", "rate": 9.0, "unit": "samples",
        "seconds_left": 5.0, "data_wait": 0.1, "efficiency": 0.9, "metrics": {"train/loss": 0.5},
    },
    "monitor/watch.json": {
        "late": [1], "slow": [{"rank": 0, "factor": 1.5}], "hang": {"line": "rank 1 hangs"}, "hangs": [{"step": 3}],
    },
    "monitor/n1.json": {
        "every_seconds": 10, "cpus": 8, "memory_limit_gib": 9.0, "gpus": [{"index": 0, "memory_gib": 80.0}],
        "sample": {"time": 1.0, "gpu0_use_percent": 5.0, "gpu0_memory_used_gib": 3.0, "cpu_use_percent": 7.0},
    },
    "monitor/ranks-n1.json": {"host": "n1", "number": 3, "ranks": [{"rank": 0, "own": 3.0, "data": 1.0}]},
    "monitor/times.json": {"until": "2026-01-01T02:00:00+00:00", "seconds": SECONDS},
    "monitor/tensorboard.json": {"url": "http://localhost:1/", "tunnel": None},
    "ranks/0.json": {"host": "n1", "weights": "ab"},
    "lock": {"host": "n1", "pid": 1, "started": "1", "cluster": "", "job": "", "restart": ""},
}  # fmt: skip
"""Each file of JSON as this project writes it."""

TEXTS = {
    "metrics.csv": "epoch,step,train/loss,val/acc\n1,14,0.5,0.8\n2,28,nan,0.9\n",
    "monitor/n1.csv": "\n".join(
        ["time,gpu0_use_percent,gpu0_power_w,cpu_use_percent,job_memory_gib", *(f"{t},1,50,9,3" for t in range(0, 200, 10))]
    ),
    "config.yaml": "data: {workers: 2}\ncheckpoint: {monitor: val/acc, mode: max}\n",
    "overrides.txt": "seed=1\n",
    "steps": "14\n",
    "state": "running\n",
    "debug/local-0-cause.txt": "why\n",
}  # fmt: skip

ODD = st.recursive(
    SCALARS.filter(lambda v: not isinstance(v, bytes) and not hasattr(v, "year")),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def places(tree: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the paths of replaceable values in a tree. () is the whole tree."""
    yield above
    for key, value in (
        tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    ):
        yield from places(value, (*above, key))


PLACES = [(name, place) for name, tree in GOOD.items() for place in places(tree)]


@cache
def folder() -> Path:
    """A folder for this process."""
    return Path(tempfile.mkdtemp(prefix="run-files-"))


@pytest.fixture(autouse=True, scope="module")
def around() -> Iterator[None]:
    """Compose the defaults once, because each report requests them. Remove the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_of_report, "compose", lambda overrides: composed(*overrides))
        yield
    shutil.rmtree(folder())
    for made in (folder, whole):
        made.cache_clear()


@cache
def whole() -> RunDir:
    """A run folder whose files are all as they should be."""
    run = RunDir(folder() / "results" / "digits" / "20260101-000000-aaaa")
    for name, content in {**GOOD, **TEXTS}.items():
        file = run.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    (run.path / "checkpoints" / "00000014").mkdir(parents=True)
    return run


@contextmanager
def with_file(name: str, content: str | bytes) -> Iterator[RunDir]:
    """Return that folder with another content of one file."""
    file = whole().path / name
    before = file.read_bytes()
    file.write_bytes(content.encode("utf-8", "replace") if isinstance(content, str) else content)
    try:
        yield whole()
    finally:
        file.write_bytes(before)


def look_at(run: RunDir) -> None:
    """All that reads a run folder without training in it."""
    submitted = RunEntry(run, None, None, None, ())
    gathered = gather([submitted])
    for report in gathered.reports:
        assert report.trouble or page(report)
    assert list_runs(gathered.reports, None) and json.loads(to_json(gathered))
    with_errors(lambda: page_of_report.page(run, facts := read_facts(run), *describe(facts)))
    with_errors(lambda: find_best([submitted], "val/acc", "max"))
    with_errors(
        lambda: restart.decide(
            restart.read_failure(run, 1, False, "", {}), restart.Nodes(("n1",), ("n1",), 1), 1, 0, True
        )
    )
    read_reports(run)
    lock.read_holder(run.path / "lock")


def with_errors(do: Callable[[], object]) -> None:
    """Call a reader. An error with a message is a valid answer."""
    try:
        do()
    except ProjectError as error:
        assert str(error)


def test_whole_files_are_shown() -> None:
    [report] = gather([RunEntry(whole(), None, None, None, ())]).reports
    assert not report.trouble and report.progress.step == 14 and report.hosts == ("n1",)


@bounded(80)
@given(st.sampled_from(PLACES), ODD)
def test_any_value_in_any_place_is_shown_or_refused(at: tuple[str, tuple[Any, ...]], value: Any) -> None:
    name, place = at
    tree = copy.deepcopy(GOOD[name])
    if place:
        section: Any = tree
        for key in place[:-1]:
            section = section[key]
        section[place[-1]] = value
    with with_file(name, json.dumps(tree if place else value)) as run:
        look_at(run)


@bounded(25)
@given(
    st.sampled_from([*GOOD, *TEXTS]),
    st.binary(max_size=30) | TEXT | st.just("[" * 3000) | st.just("1" * 5000),
)
def test_any_bytes_in_any_file_are_shown_or_refused(name: str, content: bytes | str) -> None:
    with with_file(name, content) as run:
        look_at(run)


@bounded(25)
@given(
    st.sampled_from(["metrics.csv", "monitor/n1.csv"]),
    st.lists(
        st.lists(TEXT | st.sampled_from(["step", "time", "nan", "1e400", "-1"]), max_size=4), max_size=4
    ),
)
def test_any_table_is_shown(name: str, rows: list[list[str]]) -> None:
    first, *_ = TEXTS[name].splitlines()
    with with_file(name, "\n".join([first, *(",".join(row) for row in rows)])) as run:
        look_at(run)


@bounded()
@given(ODD)
def test_json_is_read_back_or_refused(value: Any) -> None:
    try:
        assert loads(dumps(value)) == finite(value)
    except ValueError:
        assert any(len(digits) > 19 for digits in dumps(value).replace("-", " ").split()) or "e+" in dumps(
            value
        )


@bounded()
@given(
    st.text(max_size=12) | st.just("[" * 3000) | st.sampled_from(["NaN", "-Infinity", "1e999", "9" * 5000])
)
def test_no_text_is_more_than_refused(text: str) -> None:
    try:
        loads(text)
    except ValueError as error:
        assert str(error)


@bounded(60)
@given(st.dictionaries(st.sampled_from(["start", "name", "size", "files", "x"]), ODD, max_size=4) | ODD)
def test_any_record_of_a_copy_is_believed_or_not(content: Any) -> None:
    record = folder() / "data.json"
    record.write_text(json.dumps(content))
    found = _read_record(record, "a start")
    assert not found or (found["start"] == "a start" and isinstance(found["name"], str | None))


@bounded(25)
@given(st.fixed_dictionaries({}, optional={"arguments": ODD, "trials": ODD}) | ODD, st.binary(max_size=20))
def test_a_damaged_study_is_not_resumed(command: Any, journal: bytes) -> None:
    results = folder() / "studies"
    study = results / "digits" / "20260101-000000-bbbb"
    study.mkdir(parents=True, exist_ok=True)
    (study / "study.json").write_text(json.dumps(command))
    (study / "study.log").write_bytes(journal)
    asked = Study(["seed=1,2"], 3, "tpe", "none", 1, Space([], {}))
    assert find_folder(study.parent, asked, None, resumes=True) != study
    with_errors(lambda: asked.write(study))
