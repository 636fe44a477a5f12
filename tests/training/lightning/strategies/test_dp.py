"""One process for several devices; whole runs are in tests/training/test_strategies.py."""

import pytest
import torch

from src.errors import ConfigError
from src.training.lightning.strategies.dp import devices_of


def test_without_gpus_the_cpu_stands_for_each_device() -> None:
    assert devices_of(torch.device("cpu"), 3) == [torch.device("cpu")] * 3


def test_more_gpus_than_there_are() -> None:
    there = torch.cuda.device_count()
    with pytest.raises(ConfigError, match=f"this process sees {there}; use trainer.devices={there}"):
        devices_of(torch.device("cuda", 0), there + 1)
