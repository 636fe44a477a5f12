import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Train = Callable[..., subprocess.CompletedProcess[str]]


def test_all_members_are_checked_before_the_first_runs(train: Train, tmp_path: Path) -> None:
    done = train("-m", "optimizer.lr=0.1,-1", "trainer.devices=1,7", f"paths.results={tmp_path / 'r'}")
    assert done.returncode == 2
    assert "optimizer.lr=-1 trainer.devices=1" in done.stderr.replace("-1.0", "-1")
    assert "can't be shared evenly by 7" in done.stderr
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_a_member_that_fails_does_not_stop_the_next(train: Train, tmp_path: Path) -> None:
    results = tmp_path / "results"
    for split in ("train", "val"):
        (tmp_path / "empty" / "imagenet" / split / "cat").mkdir(parents=True)  # a class without pictures
    done = train(
        "-m",
        "data=imagefolder,digits",
        "data.batch_size=64",
        "trainer.fast_dev_run=true",
        f"paths.results={results}",
        f"paths.data={tmp_path / 'empty'}",
    )
    assert done.returncode == 1, done.stderr
    assert "1 of 2 members failed: data=imagefolder" in done.stderr
    states = [p.read_text() for p in results.glob("*/*/run.json")]
    assert sum('"completed"' in s for s in states) == 1
    assert sum('"failed"' in s for s in states) == 1
