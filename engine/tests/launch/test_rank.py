"""The end of a run as a rank reports it, and its exit code."""

import errno
from collections.abc import Callable

import pytest

from train_anywhere.config.schema import Config
from train_anywhere.distributed.topology import Topology
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.launch import rank
from train_anywhere.runs import folder
from train_anywhere.runs.attempts import Outcome
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.recorder import RunRecorder


def test_an_end_that_no_disk_takes_is_a_failure(
    make_run: Callable[..., tuple[Config, RunDir]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whoever started the run must not take it for one that has ended."""
    config, run = make_run("monitor.report=false")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def train(*_: object) -> Outcome:
        monkeypatch.setattr(folder, "write_or_overwrite", full)
        return Outcome("completed", 1, 2, {}, None)

    monkeypatch.setattr(rank, "train", train)
    assert rank._run_locked(config, RankProcess(run, Topology(), Stop(), RunRecorder(run))) == 1
    assert "error: the run is completed, but" in capsys.readouterr().err
