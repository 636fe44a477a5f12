"""A rank's part of a checkpoint: by way of the node's disk, or straight where that refuses."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp

from train_anywhere.files.removal import OwnedFolder
from train_anywhere.training.lightning.checkpoint.shards import ShardReader, ShardWriter

STATE = {"a": torch.arange(12.0).reshape(3, 4), "lr": 0.5}


@pytest.fixture
def written() -> Iterator[list[Path]]:
    """Files that were opened for writing."""
    found: list[Path] = []
    watching = [True]

    def watch(event: str, details: tuple[Any, ...]) -> None:
        if watching and event == "open" and isinstance(details[0], str) and details[2] & 3:
            found.append(Path(details[0]))

    sys.addaudithook(watch)  # stays for the life of the process
    yield found
    watching.clear()


def save(folder: Path, local: OwnedFolder | None) -> dict[str, Any]:
    """Write shards to `folder` and return the read values."""
    dcp.save(STATE, storage_writer=ShardWriter(folder, local), no_dist=True)
    found: dict[str, Any] = {"a": torch.zeros(3, 4), "lr": 0.0}
    dcp.load(found, storage_reader=ShardReader(folder), no_dist=True)
    return found


def test_shards_are_written_on_the_node_s_disk_and_copied(tmp_path, written, capsys) -> None:
    folder, local = tmp_path / "shared", OwnedFolder(tmp_path / "node", ("me", "run.rank-0"), "part")
    found = save(folder, local)
    assert torch.equal(found["a"], STATE["a"]) and found["lr"] == 0.5 and not capsys.readouterr().err  # type: ignore[arg-type]
    shards = [path for path in written if path.suffix == ".distcp"]
    assert shards == [local.path / "__0_0.distcp", folder / "__0_0.distcp"]
    assert not local.path.exists()
    assert sorted(p.name for p in folder.iterdir()) == [".metadata", "__0_0.distcp"]


def test_a_node_s_disk_that_refuses_is_done_without(tmp_path, capsys) -> None:
    (tmp_path / "node").write_text("no folder")
    found = save(tmp_path / "shared", OwnedFolder(tmp_path / "node", ("me", "run.rank-0"), "part"))
    assert torch.equal(found["a"], STATE["a"])  # type: ignore[arg-type]
    line = capsys.readouterr().err.splitlines()[-1]
    assert "can't write a part of a checkpoint" in line and line.endswith(
        "writing to the run folder instead."
    )


def test_a_foreign_folder_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = tmp_path / "me" / "run.rank-0" / "file"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")
    save(tmp_path / "shared", OwnedFolder(tmp_path, ("me", "run.rank-0"), "part"))
    assert theirs.read_text() == "theirs"
    assert capsys.readouterr().err.count("can't write a part of a checkpoint") == 1
