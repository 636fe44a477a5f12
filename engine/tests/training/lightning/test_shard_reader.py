"""Shards are read as numbers, from their own folder, or not at all."""

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata

from train_anywhere.errors import CheckpointError
from train_anywhere.training.lightning.checkpoint.shards import ShardPlanner, ShardReader

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.proof),)


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
