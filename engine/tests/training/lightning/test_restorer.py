"""Whatever is wrong with a checkpoint whose checksums hold is one sentence."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from train_anywhere.checkpoints.disk.manifest import (
    flush_files,
    load_manifest,
    write_manifest,
)
from train_anywhere.data.torch import random_states
from train_anywhere.errors import CheckpointError

TINY = ("model=mlp", "model.hidden=[4]", "trainer.limit_train_batches=2", "trainer.accelerator=cpu")
Spoil = Callable[[Path], None]


def changed(**values: Any) -> Spoil:
    """The checkpoint with other values."""

    def spoil(file: Path) -> None:
        torch.save(torch.load(file, weights_only=True) | values, file)

    return spoil


def without(name: str) -> Spoil:
    """The checkpoint without one of its parts."""

    def spoil(file: Path) -> None:
        state = torch.load(file, weights_only=True)
        del state[name]
        torch.save(state, file)

    return spoil


def compressed(file: Path) -> None:
    """Ten million zeros in a few bytes."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(10_000_000))


def packed(**state: Any) -> torch.Tensor:
    """The state of a rank."""
    buffer = io.BytesIO()
    torch.save({"loader": [], "attributes": torch.empty(0, dtype=torch.uint8), **state}, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def beyond_the_state() -> list[Any]:
    """Random states with a position at which numpy would read other memory."""
    states = random_states.pack(random_states.get_states())
    states[1][2] = 625
    return states


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda file: file.write_bytes(b"no zip file"), "can't be read: File is not a zip file"),
        (lambda file: file.write_bytes(b""), "can't be read: File is not a zip file"),
        (compressed, "unpacks to 10000000 bytes"),
        (lambda file: torch.save(Path("/"), file), "holds more than tensors and numbers"),
        (lambda file: torch.save([1, 2], file), "can't be resumed"),
        (changed(state_dict={"network.0.weight": torch.zeros(3)}), "holds the weights of another model: Missing"),
        (changed(state_dict=7), "can't be resumed"),
        (changed(optimizer_states=[{"state": {}, "param_groups": []}]), "can't be resumed"),
        (changed(loops={}), "can't be resumed"),
        (changed(rank_states=[torch.zeros(3)]), "holds more than tensors and numbers"),
        (changed(rank_states=[packed(random=[[1], [2], 3])]), "can't be resumed"),
        (changed(rank_states=[packed(random=beyond_the_state())]), "random states of numpy have position 625"),
        (without("rank_states"), "can't be resumed"),
        (without("optimizer_states"), "can't be resumed"),
    ],
)  # fmt: skip
@pytest.mark.quick(
    "<lambda>-can't be read: File is not a zip file0", "<lambda>-can't be read: File is not a zip file1"
)
def test_a_checkpoint_that_is_no_checkpoint(fit, make_run, spoil, says) -> None:
    config, run = make_run(*TINY, "trainer.max_epochs=1")
    fit(config, run)
    for folder in run.checkpoints.glob("0*"):
        spoil(folder / "model.ckpt")
        write_manifest(folder, load_manifest(folder), flush_files(folder))
    with pytest.raises(CheckpointError) as refused:
        fit(config, run)
    assert says in str(refused.value)
