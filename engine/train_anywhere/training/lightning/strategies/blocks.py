"""Which parts of a network FSDP splits, each to be gathered by itself."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from train_anywhere.config.strict import did_you_mean
from train_anywhere.errors import ConfigError

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
"""What only holds other layers: a list is never called, and the layers of a chain can be gathered one after another."""


def shard(
    network: nn.Module,
    device: torch.device,
    names: Sequence[str] = (),
    group: int | None = None,
    prepare: Callable[[nn.Module], None] = lambda block: None,
) -> None:
    """Split every layer or block of the network over all ranks, one after another, each to be gathered by itself.

    Normalisations between them are small; they are gathered together, with the network, and so are weights that two blocks share.

    Args:
        names: classes of the blocks; none: see `blocks_of`.
        prepare: called with each block before it is split, and with the network before the rest is.
        group: so many ranks in a row share a whole network, and gradients are averaged over the groups; None: all ranks share one.

    Raises:
        ConfigError: no layer is of such a class.
    """
    ranks = distributed.get_world_size()
    if group in (None, ranks):
        mesh = init_device_mesh(device.type, (ranks,))
    else:
        mesh = init_device_mesh(device.type, (ranks // group, group), mesh_dim_names=("replicate", "shard"))
    # torch's caches keep the mesh for ever, and it the process group, which must end before Python does
    weakref.finalize(network, mesh._pg_registry.clear)
    for block in [*blocks_of(network, names), network]:
        prepare(block)
        fully_shard(block, mesh=mesh)


def blocks_of(network: nn.Module, names: Sequence[str] = ()) -> list[nn.Module]:
    """The layers of the classes `names`; without any, the network's layers with a matrix, those of lists and chains one by one.

    Raises:
        ConfigError: no layer is of such a class.
    """
    found = list(_named(network, set(names)) if names else _layers(network))
    if names and not found:
        classes = sorted({type(m).__name__ for m in network.modules()})
        raise ConfigError(
            f"strategy.blocks={list(names)}: no layer of the network is of such a class{did_you_mean(names[0], classes)}"
        )
    uses = Counter(id(p) for _, p in network.named_parameters(remove_duplicate=False))
    return [block for block in found if not _shared(block, uses)]


def _named(network: nn.Module, names: set[str]) -> Iterator[nn.Module]:
    for child in network.children():
        if type(child).__name__ in names:
            yield child
        else:
            yield from _named(child, names)


def _layers(network: nn.Module) -> Iterator[nn.Module]:
    for child in network.children():
        if isinstance(child, CONTAINERS):
            yield from _layers(child)
        elif any(parameter.dim() > 1 for parameter in child.parameters()):
            yield child


def _shared(block: nn.Module, uses: Counter[int]) -> bool:
    """Whether weights of the block are also used outside of it."""
    own = Counter(id(p) for _, p in block.named_parameters(remove_duplicate=False))
    return any(uses[parameter] > count for parameter, count in own.items())
