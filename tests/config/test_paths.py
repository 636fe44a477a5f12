"""Paths as a shell would read them, once; a folder of a job's node is left to the node."""

from pathlib import Path

import pytest

from src.config.paths import absolute, expand, expand_home, here, on_node, unexpanded
from src.errors import DataError
from src.files import ROOT

ENVIRON = {"A": "/a", "B_1": "/b"}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("results", "results"),
        ("~/x", "/home/me/x"),
        ("$A/x", "/a/x"),
        ("${B_1}x$A", "/bx/a"),
        ("$(touch x) `id` $1 $$", "$(touch x) `id` $1 $$"),
        ("a\\$A", "a$A"),
        ("x~", "x~"),
        ("größe é", "größe é"),
        ("$SLURM_TMPDIR/$A", "$SLURM_TMPDIR/$A"),
    ],
)
def test_expand(monkeypatch: pytest.MonkeyPatch, typed: str, meant: str) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert expand(typed, ENVIRON) == meant


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("$NOPE/x", "names \\$NOPE, which is not set here"),
        ("~nosuchuser/x", r"names a user that this machine does not know \(~nosuchuser\)"),
    ],
)
def test_what_does_not_exist_is_a_sentence(typed: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        expand(typed, ENVIRON)


@pytest.mark.parametrize("path", ["/a", "/a$A/$(x)", "/a\\b", "$SLURM_TMPDIR/x", "${TMPDIR}/x"])
def test_a_frozen_path_is_read_back_as_it_is(path: str) -> None:
    assert expand(unexpanded(path), ENVIRON) == path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("$SLURM_TMPDIR/x", True),
        ("${TMPDIR}", True),
        ("$PBS_JOBDIR", True),
        ("$TMPDIRS", False),
        ("/x", False),
    ],
)
def test_folders_of_the_node(path: str, expected: bool) -> None:
    assert on_node(path) == expected


def test_a_rank_asks_its_own_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_TMPDIR", "/local/7")
    monkeypatch.delenv("TMPDIR", raising=False)
    assert here("$SLURM_TMPDIR/data") == "/local/7/data"
    assert here("/a$A") == "/a$A"
    with pytest.raises(DataError, match=r"\$TMPDIR/data names \$TMPDIR, which is not set here"):
        here("$TMPDIR/data")


def test_a_relative_path_is_below_the_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("results") == ROOT / "results"
    assert absolute("$TMPDIR/x") == Path("$TMPDIR/x")


def test_only_the_home_is_expanded_if_the_rest_is_the_node_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert expand_home("~/$NOPE") == "/home/me/$NOPE"
