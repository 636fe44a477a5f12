"""Manifest, checksums and copies of a checkpoint's files."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tools.testing.processes import run_python
from train_anywhere.checkpoints.disk.manifest import (
    CheckpointInfo,
    copy_files,
    find_damage,
    flush_files,
    list_sizes,
    load_manifest,
    write_manifest,
)
from train_anywhere.checkpoints.store import CheckpointStore, Retention, refuse_unreadable
from train_anywhere.config.schema import Config
from train_anywhere.errors import CheckpointError
from train_anywhere.files import ROOT
from train_anywhere.files.copy_files import CHUNK
from train_anywhere.runs.folder import RunDir

INFO = CheckpointInfo(7, 1, 2, {"val/acc": 0.5}, 0.5, "mine")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkpoint with an empty file, a nested one, and one of several chunks."""
    folder = tmp_path / "source"
    (folder / "shards").mkdir(parents=True)
    (folder / "empty").touch()
    (folder / "shards" / "small").write_bytes(b"weights")
    (folder / "large").write_bytes(os.urandom(2 * CHUNK + 1))
    write_manifest(folder, INFO, list_sizes(folder))
    return folder


def test_a_copy_is_checksummed_on_the_way(source: Path, tmp_path: Path) -> None:
    target, pauses = tmp_path / "target", []
    target.mkdir()
    files = copy_files(load_manifest(source), target, lambda: pauses.append(1))
    for name in ("empty", "shards/small", "large"):
        data = (target / name).read_bytes()
        assert data == (source / name).read_bytes()
        assert files[name] == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert len(pauses) == 4
    write_manifest(target, INFO, files)
    assert flush_files(target) == files and find_damage(target) is None
    assert load_manifest(target).metrics == {"val/acc": 0.5}


def test_sizes_alone_say_when_a_file_is_cut(source: Path) -> None:
    assert find_damage(source) is None
    (source / "large").write_bytes(b"")
    assert find_damage(source) == "large does not match its checksum"
    (source / "large").unlink()
    assert find_damage(source) == "large is missing"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"files": {}, "format": 2}', '{"files": 3, "step": 1}']
)
def test_a_file_that_is_not_a_manifest(source: Path, text: str) -> None:
    (source / "manifest.json").write_text(text)
    assert find_damage(source) == "no readable manifest.json"


LIMITED = """
import os, resource, sys
sys.path[:0] = [{root!r}, {root!r} + "/engine"]
from train_anywhere.files.copy_files import write_all
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with open({file!r}, "wb", buffering=0) as file:
    write_all(file.fileno(), memoryview(bytes(1500)))
"""


def test_a_write_of_which_only_a_part_fits_is_an_error(tmp_path: Path) -> None:
    """The first call of write takes a part of the bytes, the next one fails."""
    file = tmp_path / "file"
    script = LIMITED.format(root=str(ROOT), file=str(file))
    done = run_python("-c", script)
    assert done.returncode == 1 and "File too large" in done.stderr
    assert file.stat().st_size == 1000


MakeRun = Callable[..., tuple[Config, RunDir]]
Train = Callable[..., "CompletedProcess[str]"]


def with_checkpoints(run: RunDir, *steps: int) -> CheckpointStore:
    store = CheckpointStore(run.checkpoints, Retention("max", keep_last=len(steps)))
    for step in steps:
        info = CheckpointInfo(step, 0, step, {}, None, "mine")
        store.write(
            lambda folder, step=step: (folder / "weights").write_text(f"of step {step}") and None, info
        )
    return store


def damage(run: RunDir, *steps: int) -> None:
    for step in steps:
        (run.checkpoints / f"{step:08d}" / "weights").write_text("cut")


def everything(run: RunDir) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}


def test_a_run_without_any_checkpoint_just_starts(make_run: MakeRun) -> None:
    _, run = make_run()
    refuse_unreadable(run)
    assert with_checkpoints(run).newest_good() is None


def test_all_damaged_is_refused_and_changes_nothing(make_run: MakeRun) -> None:
    _, run = make_run()
    store = with_checkpoints(run, 3, 6)
    refuse_unreadable(run)
    damage(run, 6)
    refuse_unreadable(run)  # there is another one
    damage(run, 3)
    before = everything(run)
    with pytest.raises(CheckpointError) as refused:
        refuse_unreadable(run)
    assert str(refused.value) == (
        f"{run.path} has no checkpoint that can be read (2 are damaged: 00000003: weights does not match its checksum, "
        f"00000006: weights does not match its checksum); nothing was deleted. resume={run.path} from_scratch=true starts "
        "it again from step 0 and keeps them aside."
    )
    with pytest.raises(CheckpointError, match="2 are damaged"):
        store.newest_good()
    assert everything(run) == before


def test_damage_that_only_checksums_see_is_the_rank_s_to_find(make_run: MakeRun) -> None:
    _, run = make_run()
    store = with_checkpoints(run, 3)
    (run.checkpoints / "00000003" / "weights").write_text("of step 4")
    refuse_unreadable(run)
    with pytest.raises(CheckpointError, match="1 is damaged: 00000003: weights"):
        store.newest_good()


@pytest.mark.parametrize("where", [(), ("cluster=slurm",), ("dry_run=true",)])
@pytest.mark.quick("where2")
def test_a_resume_is_refused_before_anything_is_written(
    make_run: MakeRun, train: Train, where: tuple[str, ...]
) -> None:
    _, run = make_run()
    with_checkpoints(run, 3)
    damage(run, 3)
    before = everything(run)
    done = train(f"resume={run.path}", *where)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: {run.path} has no checkpoint" in done.stderr
    assert everything(run) == before
