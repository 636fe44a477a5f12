"""Any string for a range, time, command, rank, run or search is a value or one message."""

import dataclasses
import re
import shlex
from datetime import datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from engine.tests.properties.cases import DIGITS, TEXT, bounded, composed
from train_anywhere.config.checks import contradictions
from train_anywhere.config.command.compose import parse_override
from train_anywhere.config.limits import Span, span_bounds
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, SubmitError
from train_anywhere.features import serve
from train_anywhere.monitor import heartbeat
from train_anywhere.search.loop import make_space
from train_anywhere.slurm.script import units
from train_anywhere.slurm.status import find_runs

MOST = 1000
PORT = "{port}"


@cache
def config() -> Config:
    """A good configuration."""
    return load(composed())


@bounded(200)
@given(st.text(DIGITS | st.sampled_from("0123456789- ,:."), max_size=8) | TEXT)
def test_any_text_is_a_range_or_refused(text: str) -> None:
    value, said = Span(MOST)(text)
    least, most = span_bounds(value)  # what stands in for a refused one is a range too
    assert 1 <= least <= most <= MOST
    assert said or re.fullmatch("[0-9]+-[0-9]+", text, re.ASCII)


@bounded()
@given(st.integers(1, MOST), st.integers(1, MOST))
def test_a_range_is_read_back(one: int, other: int) -> None:
    least, most = sorted((one, other))
    assert Span(MOST)(f"{least}-{most}") == (f"{least}-{most}", "")
    assert span_bounds(f"{least}-{most}") == (least, most)
    assert span_bounds(most) == (most, most)


@bounded(200)
@given(
    st.sampled_from(["auto", 1, 2, 3, 8]),
    st.none()
    | st.integers(1, 64)
    | st.tuples(st.integers(1, 64), st.integers(0, 64)).map(lambda t: f"{t[0]}-{t[0] + t[1]}"),
    st.integers(1, 64)
    | st.tuples(st.integers(1, 9), st.integers(0, 9)).map(lambda t: f"{t[0]}-{t[0] + t[1]}"),
)
def test_devices_are_whole_nodes_or_refused(devices, total, nodes) -> None:
    trainer = dataclasses.replace(config().trainer, devices=devices, total_devices=total, nodes=nodes)
    said = [*contradictions.check_devices(trainer)]
    least, most = trainer.node_range
    assert said or 1 <= least <= most
    if not said and isinstance(total, str) and isinstance(devices, int):
        assert total == f"{least * devices}-{most * devices}"


@bounded(200)
@given(
    st.text(DIGITS | st.sampled_from("0123456789:-+T now.hours"), max_size=20)
    | TEXT
    | st.datetimes().map(datetime.isoformat)
)
def test_any_text_is_a_time_to_begin_at_or_refused(text: str) -> None:
    try:
        assert units.check_begin_time(text) == text and text.isascii() and "\n" not in text
    except ValueError as error:
        assert "use " in str(error)


@bounded()
@given(
    st.datetimes(datetime(1970, 1, 1), datetime(2999, 1, 1)).map(lambda t: t.replace(microsecond=0, fold=0))
)
def test_a_date_is_the_same_for_both_schedulers(when: datetime) -> None:
    assert units.check_begin_time(when.isoformat()) == when.isoformat()
    assert datetime.strptime(units.to_qsub(when.isoformat()), "%Y%m%d%H%M.%S") == when


WORDS = st.text(st.sampled_from("ab{port}'\"\\ $;\n") | st.characters(exclude_categories=["Cs"]), max_size=12)


@bounded(200)
@given(WORDS)
def test_a_command_is_told_its_port_or_refused(command: str) -> None:
    monitor = SimpleNamespace(dashboard=command, serve=False, serve_address=None)
    feature = serve.Serve()
    feature.config = SimpleNamespace(monitor=monitor)  # type: ignore[assignment]
    if feature.check("any", 1):
        return
    first, *others = [word.replace(PORT, "4711") for word in shlex.split(command)]
    assert any("4711" in word for word in others) and PORT not in first


@bounded(200)
@given(TEXT | st.ip_addresses().map(str) | st.text("0123456789.:ab", max_size=9))
def test_an_address_is_one_to_listen_at_or_refused(text: str) -> None:
    if serve._is_address(text):
        assert text.isascii() and not re.search(r"[\s/@'\"$`]", text)


@bounded(200)
@given(st.text(st.sampled_from("ab-._=+/ ~") | st.characters(exclude_categories=["Cs"]), max_size=12))
def test_a_name_is_one_of_a_folder_or_refused(name: str) -> None:
    if not [*contradictions.check_name(name)]:
        assert Path("/results", name).parts == ("/", "results", name) and name.isascii() and name != "latest"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with a run and a member of a sweep."""
    folder = tmp_path_factory.mktemp("results")
    for name in ("20260101-000000-aaaa", "20260101-000000-bbbb-0"):
        (folder / "digits" / name).mkdir(parents=True)
        (folder / "digits" / name / "config.yaml").write_text("cluster: {scheduler: none}\n")
    return folder


ARGUMENT = st.text(
    st.sampled_from("*?[]/.~0123456789_-ab") | st.characters(exclude_categories=["Cs"]), max_size=12
)


@bounded(150)
@given(
    name=ARGUMENT
    | st.sampled_from(["20260101-000000-aaaa", "20260101-000000-bbbb", "/", "../digits", "~nobody"])
)
def test_any_word_is_a_run_or_refused(results: Path, name: str) -> None:
    try:
        found = find_runs.find(name, results)
    except SubmitError as error:
        assert str(error)
        return
    assert found and all(run.folder.path.parent == results / "digits" for run in found)


@bounded()
@given(content=st.binary(max_size=30) | st.text("0123456789_.[]\n", max_size=20).map(str.encode))
def test_any_jobs_are_ids_or_refused(results: Path, content: bytes) -> None:
    jobs = results / "digits" / "20260101-000000-aaaa" / "jobs.txt"
    jobs.write_bytes(content)
    run = find_runs.read_entry(jobs.parent)
    jobs.unlink()
    assert all(re.fullmatch(r"[\w.\[\]-]+", job) for job in run.job_ids)
    assert bool(run.job_ids) or "jobs.txt" in run.trouble or {*content.split()} <= {b"?"}


WRITTEN = heartbeat._LAYOUT.size
HEAD = heartbeat._LAYOUT.pack(1, heartbeat.VERSION, *[0] * 18)[:8]


@bounded(100)
@given(
    content=st.binary(max_size=WRITTEN)
    | st.binary(min_size=WRITTEN, max_size=WRITTEN).map(lambda b: HEAD + b[8:-4] + HEAD[:4])
)
def test_any_bytes_are_a_heartbeat_or_none(results: Path, content: bytes) -> None:
    path = results / "rank-0"
    path.write_bytes(content)
    record = heartbeat.read(path)
    assert record is None or (record["section"] in heartbeat.SECTIONS and record["place"] in heartbeat.PLACES)


NUMBERS = st.sampled_from(["0", "1", "-1", "3", "0.5", "1e-4", "1e400", "nan", "inf", "a", ""])
SWEEPS = st.recursive(
    NUMBERS,
    lambda inner: (
        st.builds(
            lambda name, values: f"{name}({','.join(values)})",
            st.sampled_from(
                ["interval", "range", "choice", "int", "float", "shuffle", "sort", "tag", "glob"]
            ),
            st.lists(inner | st.sampled_from(["log", "x", "step=2", "reverse=true"]), max_size=4),
        )
        | st.lists(inner, min_size=2, max_size=3).map(",".join)
    ),
    max_leaves=5,
)


@bounded(150)
@given(SWEEPS | st.text("interval(),0123.tagchoe", max_size=12))
def test_any_sweep_is_searched_or_refused(typed: str) -> None:
    word = f"optimizer.lr={typed}"
    if parse_override(word) is None:
        return
    try:
        space = make_space(OverridesParser.create().parse_overrides([word]))
    except ConfigError as error:
        assert error.problems and all(p and "\n" not in p for p in error.problems)
        return
    for [end] in space.extremes():
        assert parse_override(end) is not None, end
