"""Pick the device of a rank, and check that it supports the configuration."""

import torch

from train_anywhere.config.schema import Trainer
from train_anywhere.distributed.layout import no_gpu_message
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError


def pick_device(trainer: Trainer, topology: Topology) -> torch.device:
    """Return the device of this rank: its GPU, or the CPU.

    A scheduler may show each rank only its own GPU, or all GPUs of the node. In the second case the local rank is the GPU's number.

    Raises:
        ConfigError: the device is missing, or can't compute in the requested precision.
    """
    accelerator, gpus = trainer.accelerator, torch.cuda.device_count()
    if accelerator == "cpu" or (accelerator == "auto" and gpus == 0):
        if trainer.precision == "16-mixed":
            raise ConfigError(
                "trainer.precision=16-mixed needs a GPU, and this rank computes on the CPU; "
                "use trainer.precision=bf16-mixed."
            )
        return torch.device("cpu")
    if accelerator == "mps":
        if not torch.backends.mps.is_available():
            raise ConfigError(
                "trainer.accelerator=mps, but torch can't use the GPU of this Mac; use trainer.accelerator=cpu."
            )
        return torch.device("mps")
    if gpus == 0:
        raise ConfigError(no_gpu_message("torch"))
    index = 0 if gpus == 1 else topology.local_rank
    if index >= gpus:
        raise ConfigError(
            f"local rank {index} has no GPU: this node shows {gpus} and has "
            f"{topology.local_world_size} ranks; use trainer.devices={gpus}."
        )
    return torch.device("cuda", index)
