"""Reading of the weights in the newest checkpoint of a run, for several tests."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np


def final_weights(run: Path) -> dict[str, np.ndarray]:
    """Return the trained weights by name as float32 arrays."""
    folder = run / "checkpoints" / (run / "checkpoints" / "newest").read_text().strip()
    if not (folder / "weights.npz").exists():
        return {name: value.numpy() for name, value in _torch(folder).items()}
    with np.load(folder / "weights.npz") as arrays:
        return {name: arrays[name] for name in arrays.files if arrays[name].dtype == np.float32}


def largest_difference(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """Return the largest difference between two results of `final_weights` with the same names."""
    assert one.keys() == other.keys()
    assert one
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def fingerprints(output: str) -> set[str]:
    """Return the checksums that the ranks printed at the end with `monitor.ranks=true`."""
    return set(re.findall(r": weights ([0-9a-f]{16})", output))


def info(run: Path) -> dict:
    """Return the content of run.json."""
    return json.loads((run / "run.json").read_text())


class Evil:
    """Makes a folder when it is unpickled: for checkpoints with foreign code."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.proof),)


def _torch(folder: Path) -> dict:
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    if not (folder / ".metadata").exists():
        return torch.load(folder / "model.ckpt", weights_only=True)["state_dict"]
    whole = folder.parent / "whole.pt"
    dcp_to_torch_save(folder, whole)
    return torch.load(whole, weights_only=False)["state_dict"]
