"""One process for several devices. Whole runs are in training/test_strategies.py."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from train_anywhere.errors import ConfigError
from train_anywhere.training.lightning.strategies.choose import DataParallel, list_devices


def test_without_gpus_the_cpu_stands_for_each_device() -> None:
    assert list_devices(torch.device("cpu"), 3) == [torch.device("cpu")] * 3


def test_more_gpus_than_there_are() -> None:
    there = torch.cuda.device_count()
    with pytest.raises(ConfigError, match=f"this process sees {there}; use trainer.devices={there}"):
        list_devices(torch.device("cuda", 0), there + 1)


class Network(nn.Module):
    """Takes and gives batches of any structure."""

    width = 7
    calls = 0

    def forward(self, rows: dict[str, Any], scale: float, *, shift: Tensor) -> dict[str, Any]:
        self.calls += 1
        return {"out": (rows["x"] * scale + shift, rows["pair"][0]), "seen": torch.tensor(float(len(shift)))}


def test_a_batch_of_any_structure_is_shared_by_the_devices() -> None:
    network = Network()
    DataParallel(list_devices(torch.device("cpu"), 2)).split(network)
    x, first = torch.arange(5.0), torch.arange(10).reshape(5, 2)
    found = network({"x": x, "pair": [first, "same for all"]}, 2.0, shift=torch.ones(5))
    assert torch.equal(found["out"][0], 2 * x + 1) and torch.equal(found["out"][1], first)
    assert found["seen"].tolist() == [3.0, 2.0]
    assert network.calls == 2 and network.width == 7
