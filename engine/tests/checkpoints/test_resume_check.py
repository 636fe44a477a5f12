"""A run whose checkpoints can't be read is refused before anything is written."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from train_anywhere.checkpoints.disk.manifest import CheckpointInfo
from train_anywhere.checkpoints.store import CheckpointStore, refuse_unreadable
from train_anywhere.config.schema import Config
from train_anywhere.errors import CheckpointError
from train_anywhere.runs.folder import RunDir

MakeRun = Callable[..., tuple[Config, RunDir]]
Train = Callable[..., "CompletedProcess[str]"]


def with_checkpoints(run: RunDir, *steps: int) -> CheckpointStore:
    store = CheckpointStore(run.checkpoints, "max", keep_last=len(steps))
    for step in steps:
        temporary = store.make_temporary(step)
        (temporary / "weights").write_text(f"of step {step}")
        store.commit(temporary, CheckpointInfo(step, 0, step, {}, None, "mine"))
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
