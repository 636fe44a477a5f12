"""Which device a rank takes. This machine need not have GPUs: only their number is made up."""

from collections.abc import Callable

import pytest
import torch

from train_anywhere.config.schema import Config
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError
from train_anywhere.training.lightning.strategies.choose import pick_device

MakeConfig = Callable[..., Config]
SECOND = Topology(rank=5, local_rank=1, node_rank=1, world_size=8, local_world_size=4, nodes=2)


@pytest.mark.parametrize(
    ("gpus", "accelerator", "expected"),
    [
        (0, "auto", "cpu"),
        (4, "cpu", "cpu"),
        (4, "auto", "cuda:1"),  # all GPUs of the node are shown to each rank
        (4, "gpu", "cuda:1"),
        (1, "auto", "cuda:0"),  # each rank is shown its own
    ],
)
def test_device(gpus, accelerator, expected, make_config, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert pick_device(make_config(f"trainer.accelerator={accelerator}").trainer, SECOND) == torch.device(
        expected
    )


@pytest.mark.parametrize(
    ("gpus", "overrides", "message"),
    [
        (0, ["trainer.accelerator=gpu"], "sees no GPU here"),
        (0, ["trainer.precision=16-mixed"], "use trainer.precision=bf16-mixed"),
        (4, ["trainer.precision=16-mixed", "trainer.accelerator=cpu"], "use trainer.precision=bf16-mixed"),
        (2, [], "this node shows 2 and has 4 ranks; use trainer.devices=2"),
    ],
)
def test_what_can_not_be_is_one_sentence(gpus, overrides, message, make_config, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    topology = Topology(rank=2, local_rank=2, world_size=4, local_world_size=4)
    with pytest.raises(ConfigError, match=message):
        pick_device(make_config(*overrides).trainer, topology)
