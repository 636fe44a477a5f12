"""torch's DataParallel on one node: one process, which shares out each batch over all its devices.

Lightning 2.0 removed its own. Compared with `ddp`, one Python process feeds all GPUs, and the weights travel
to each of them at every step: simpler to debug, slower to train.
"""

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.nn.parallel import data_parallel

from src.errors import ConfigError


class DataParallel(SingleDeviceStrategy):
    """Runs the network on parts of the batch, one per device; loss, metrics and optimizer see the whole batch.

    Each part of a batch has batch statistics of its own, as in torch's DataParallel. Without GPUs the parts
    are computed one after another, so it can be tried on any machine.

    Args:
        devices: the first one keeps the weights.
    """

    strategy_name = "dp"

    def __init__(self, devices: list[torch.device]) -> None:
        super().__init__(devices[0])
        self.devices = devices

    def setup(self, trainer: pl.Trainer) -> None:
        """As for one device, but the module's forward runs the network on all of them."""
        super().setup(trainer)
        assert self.lightning_module
        self.lightning_module.forward = self._forward

    def _forward(self, image: Tensor) -> Tensor:
        """Images [b, C, H, W] to logits [b, classes], on the first device."""
        assert self.lightning_module
        network = self.lightning_module.network
        if self.root_device.type == "cuda":
            return data_parallel(network, image, self.devices)
        return torch.cat([network(part) for part in image.chunk(len(self.devices))])


def devices_of(first: torch.device, count: int) -> list[torch.device]:
    """`count` devices of one process; without GPUs, the CPU repeated `count` times.

    Raises:
        ConfigError: there are fewer GPUs.
    """
    if first.type != "cuda":
        return [first] * count
    if count > torch.cuda.device_count():
        raise ConfigError(
            f"strategy=dp needs {count} GPUs and this process sees {torch.cuda.device_count()}; "
            f"use trainer.devices={torch.cuda.device_count()}."
        )
    return [torch.device("cuda", number) for number in range(count)]
