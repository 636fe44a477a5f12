"""The file that a GPU without free memory leaves, with a stand-in for torch's function."""

from pathlib import Path

import pytest
import torch

from train_anywhere.distributed.topology import Topology
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.launch.failure import report_failure
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.lightning.run import save_memory_snapshot


@pytest.mark.parametrize("fails", [False, True])
def test_an_out_of_memory_error_names_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails: bool
) -> None:
    def snapshot() -> list[str]:
        if fails:
            raise OSError("no space")
        return ["segment"]

    monkeypatch.setattr(torch.cuda, "memory_snapshot", snapshot)
    run = RunDir(tmp_path)
    (tmp_path / "config.yaml").write_text("data: {batch_size: 96}\ntrainer: {micro_batch: 48}\n")
    process = RankProcess(run, Topology(), Stop())
    save_memory_snapshot(process, ValueError("another"))
    assert not run.debug.exists()
    error = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    save_memory_snapshot(process, error)
    report_failure(run, Topology(), error)
    printed = " ".join(capsys.readouterr().err.split())
    assert "CUDA out of memory" in printed and "Memory: trainer.micro_batch=24 computes" in printed
    assert ("-rank-0-memory.pickle, shown by https://pytorch.org/memory_viz" in printed) is not fails
    assert len([*run.debug.glob("*-rank-0-memory.pickle")]) == (not fails)
