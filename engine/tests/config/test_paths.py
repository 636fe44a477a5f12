"""Paths are read once as a shell would. A folder of a job's node is left to the node."""

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from train_anywhere.config.paths import (
    Folder,
    escape_dollars,
    expand,
    expand_home,
    is_on_node,
    make_absolute,
    resolve_node_path,
)
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, DataError
from train_anywhere.files import ROOT

ENVIRON = {"A": "/a", "B_1": "/b"}


MEANT = {
    "results": "results",
    "~/x": "/home/me/x",
    "$A/x": "/a/x",
    "${B_1}x$A": "/bx/a",
    "$(touch x) `id` $1 $$": "$(touch x) `id` $1 $$",
    "a\\$A": "a$A",
    "x~": "x~",
    "größe é": "größe é",
    "$SLURM_TMPDIR/$A": "$SLURM_TMPDIR/$A",
}


@pytest.fixture(autouse=True)
def environ(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)


def test_expand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert {typed: expand(typed) for typed in MEANT} == MEANT
    assert expand_home("~/$NOPE") == "/home/me/$NOPE"  # the rest is the node's


def test_what_does_not_exist_is_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"names \$NOPE, which is not set here"):
        expand("$NOPE/x")
    with pytest.raises(ValueError, match=r"names a user that this machine does not know \(~nosuchuser\)"):
        expand("~nosuchuser/x")


def test_a_frozen_path_is_read_back_as_it_is() -> None:
    paths = ["/a", "/a$A/$(x)", "/a\\b", "$SLURM_TMPDIR/x", "${TMPDIR}/x"]
    assert [expand(escape_dollars(path)) for path in paths] == paths


def test_folders_of_the_node() -> None:
    expected = {
        "$SLURM_TMPDIR/x": True,
        "${TMPDIR}": True,
        "$PBS_JOBDIR": True,
        "$TMPDIRS": False,
        "/x": False,
    }
    assert {path: is_on_node(path) for path in expected} == expected


def test_a_rank_asks_its_own_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_TMPDIR", "/local/7")
    monkeypatch.delenv("TMPDIR", raising=False)
    assert resolve_node_path("$SLURM_TMPDIR/data") == "/local/7/data"
    assert resolve_node_path("/a$A") == "/a$A"
    with pytest.raises(DataError, match=r"\$TMPDIR/data names \$TMPDIR, which is not set here"):
        resolve_node_path("$TMPDIR/data")


def test_a_relative_path_is_below_the_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert make_absolute("results") == ROOT / "results"
    assert make_absolute("$TMPDIR/x") == Path("$TMPDIR/x")


KEYS = [
    *("paths.data", "paths.results", "data.dir", "data.cache", "init.run", "checkpoint.local"),
    *("cluster.local_disk", "cluster.venv", "container.image", "after"),
]


@pytest.mark.parametrize("path", ["/tmp/" + "x" * 300, "é" * 128, "/".join(["y" * 200] * 30)])
@pytest.mark.quick("path1")
def test_a_path_that_no_disk_takes_is_refused_by_its_key(
    make_config: Callable[..., Config], path: str
) -> None:
    for key in KEYS:
        with pytest.raises(ConfigError) as refused:
            make_config("data=text", "task=language_model", "model=gpt", f"{key}='{path}'")
        for problem in refused.value.problems:
            assert problem.startswith(("paths.data=", "data.cache=", f"{key}="))
            assert "is too long for a path: at most 255 bytes for each name, 4095 in all" in problem


def test_the_longest_name_and_path_are_taken(make_config: Callable[..., Config]) -> None:
    rule = get_args(Folder)[1]
    assert rule("é" * 127) == ("é" * 127, "") and "at most 255 bytes for each name" in rule("é" * 128)[1]
    longest = "/" + "/".join(["é" * 127] * 15)
    assert make_config(f"paths.data='{longest}'").paths.data == longest
