import subprocess
from collections.abc import Callable
from pathlib import Path

Train = Callable[..., subprocess.CompletedProcess[str]]


def test_all_members_are_checked_before_the_first_runs(train: Train, tmp_path: Path) -> None:
    done = train("-m", "optimizer.lr=0.1,-1", "trainer.devices=1,7", f"paths.results={tmp_path / 'r'}")
    assert done.returncode == 2
    assert "optimizer.lr=-1 trainer.devices=1" in done.stderr.replace("-1.0", "-1")
    assert "can't be shared evenly by 7" in done.stderr
    assert not (tmp_path / "r").exists()
