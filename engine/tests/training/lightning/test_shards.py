"""Sharded checkpoints: written by way of the node's disk, read as numbers from their own folder, or not at all."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata

from tools.testing.weights import Evil
from train_anywhere.errors import CheckpointError
from train_anywhere.files import ROOT
from train_anywhere.files.removal import OwnedFolder
from train_anywhere.training.lightning.checkpoint.contents import ShardPlanner, ShardReader, ShardWriter

RANKS = 8
RANK = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "engine")!r}]
from pathlib import Path
import torch
from torch import distributed
from train_anywhere.training.lightning.checkpoint.contents import Shards

def sockets():
    return sum(path.is_socket() for path in Path("/proc/self/fd").iterdir())

torch.set_num_threads(1)
folder, rank = Path(sys.argv[1]), int(sys.argv[2])
distributed.init_process_group("gloo", init_method=f"file://{{folder}}/meet", rank=rank, world_size={RANKS})
before = sockets()
shards = Shards(folder / "checkpoints")
shards.write({{"state_dict": {{f"of {{rank}}": torch.full((3,), float(rank))}}, "optimizer_states": [{{}}]}})
print(shards.wait() or sockets() - before)
distributed.barrier()
"""


@pytest.mark.slow
def test_ranks_connect_only_with_those_they_speak_to(tmp_path: Path) -> None:
    """All with all would be seven connections for each of eight, and a socket to listen."""
    (tmp_path / "checkpoints").mkdir()
    commands = [[sys.executable, "-c", RANK, str(tmp_path), str(n)] for n in range(RANKS)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    said = [int(rank.communicate(timeout=300)[0].splitlines()[-1]) for rank in ranks]
    assert len(list((tmp_path / "checkpoints" / "shards").glob("*.distcp"))) == RANKS
    assert sum(said) < RANKS * RANKS * 3 / 4


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
    lines = capsys.readouterr().err.splitlines()
    assert "can't write a part of a checkpoint" in lines[0]
    assert lines[0].endswith("writing to the run folder instead.")


def test_a_foreign_folder_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = tmp_path / "me" / "run.rank-0" / "file"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")
    save(tmp_path / "shared", OwnedFolder(tmp_path, ("me", "run.rank-0"), "part"))
    assert theirs.read_text() == "theirs"
    assert capsys.readouterr().err.count("can't write a part of a checkpoint") == 1


pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of one tensor and one plain value."""
    dcp.save({"w": torch.arange(4.0), "lr": 0.5}, checkpoint_id=tmp_path / "shards")
    return tmp_path / "shards"


def load(folder: Path) -> dict[str, Any]:
    state = {"w": torch.zeros(4), "lr": 0.0}
    dcp.load(state, storage_reader=ShardReader(folder), planner=ShardPlanner())
    return state


def test_tensors_and_plain_values_come_back(folder: Path) -> None:
    assert torch.equal(load(folder)["w"], torch.arange(4.0)) and load(folder)["lr"] == 0.5


def test_an_entry_that_would_run_code_does_not(folder: Path, tmp_path: Path) -> None:
    dcp.save({"w": torch.arange(4.0), "lr": Evil(tmp_path / "proof")}, checkpoint_id=folder)
    with pytest.raises(dcp.CheckpointException) as refused:
        load(folder)
    assert isinstance(refused.value.failures[0][0], pickle.UnpicklingError)
    assert not (tmp_path / "proof").exists()


def elsewhere(metadata: Metadata) -> None:
    """A shard outside of the folder."""
    for index, place in metadata.storage_data.items():
        metadata.storage_data[index] = replace(place, relative_path="../other.distcp")


def unpacked(metadata: Metadata) -> None:
    """An extension that unpacks the shard."""
    for index, place in metadata.storage_data.items():
        metadata.storage_data[index] = replace(place, transform_descriptors=["stream.zstd"])


def negative(metadata: Metadata) -> None:
    """A place before the file."""
    for index, place in metadata.storage_data.items():
        metadata.storage_data[index] = replace(place, offset=-1)


def other_entries(metadata: Metadata) -> None:
    """Not what torch writes."""
    metadata.state_dict_metadata["w"] = 7  # type: ignore[assignment]


@pytest.mark.parametrize("change", [elsewhere, unpacked, negative, other_entries])
def test_metadata_that_points_elsewhere_is_refused(folder: Path, change: Callable[[Metadata], None]) -> None:
    metadata = ShardReader(folder).read_metadata()
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match="does not say which tensors are in which file of its folder"):
        load(folder)


@pytest.mark.parametrize(
    "content", [b"", b"text", b"\x80\x04N.", pickle.dumps(os.system), pickle.dumps(eval)]
)
def test_metadata_that_is_none_is_refused(folder: Path, content: bytes) -> None:
    (folder / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointError, match="it is not read"):
        ShardReader(folder)
