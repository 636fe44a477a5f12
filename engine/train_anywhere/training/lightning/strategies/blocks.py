"""Choose the layers of a network that FSDP splits and gathers as one unit each."""

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
"""Layers that only contain others: a list is never called, and the layers of a chain can be gathered one after another."""


def shard(
    network: nn.Module,
    device: torch.device,
    names: Sequence[str] = (),
    group: int | None = None,
    prepare: Callable[[nn.Module], None] = lambda block: None,
) -> None:
    """Split each block of the network over all ranks, one after another; each block is gathered as a unit.

    The rest is gathered together, with the network: small layers such as normalizations, and weights that two blocks share.

    The blocks are the layers with the class `names`, or those of `find_blocks`. Each `group` of consecutive ranks shares one copy of
    the network, with gradients averaged over the groups; None: all ranks share one. `prepare` is called with each block before it is
    split, and with the network before the rest is. Raises ConfigError if no layer has one of these classes.
    """
    ranks = distributed.get_world_size()
    if group in (None, ranks):
        mesh = init_device_mesh(device.type, (ranks,))
    else:
        mesh = init_device_mesh(device.type, (ranks // group, group), mesh_dim_names=("replicate", "shard"))
    # torch caches the mesh and so the process group, which must end before Python does
    weakref.finalize(network, mesh._pg_registry.clear)
    for block in [*find_blocks(network, names), network]:
        prepare(block)
        fully_shard(block, mesh=mesh)


def find_blocks(network: nn.Module, names: Sequence[str] = ()) -> list[nn.Module]:
    """Return the layers with these class names; without names, all layers with a matrix, those of lists and chains one by one.

    Raises:
        ConfigError: no layer has one of these classes.
    """
    found = list(_blocks_by_class(network, set(names)) if names else _layers_with_matrices(network))
    if names and not found:
        classes = sorted({type(m).__name__ for m in network.modules()})
        raise ConfigError(
            f"strategy.blocks={list(names)}: no layer of the network has such a class{did_you_mean(names[0], classes)}"
        )
    uses = Counter(id(p) for _, p in network.named_parameters(remove_duplicate=False))
    return [block for block in found if not _shares_weights(block, uses)]


def _blocks_by_class(network: nn.Module, names: set[str]) -> Iterator[nn.Module]:
    for child in network.children():
        if type(child).__name__ in names:
            yield child
        else:
            yield from _blocks_by_class(child, names)


def _layers_with_matrices(network: nn.Module) -> Iterator[nn.Module]:
    for child in network.children():
        if isinstance(child, CONTAINERS):
            yield from _layers_with_matrices(child)
        elif any(parameter.dim() > 1 for parameter in child.parameters()):
            yield child


def _shares_weights(block: nn.Module, uses: Counter[int]) -> bool:
    """Return whether weights of the block are also used outside of it."""
    own = Counter(id(p) for _, p in block.named_parameters(remove_duplicate=False))
    return any(uses[parameter] > count for parameter, count in own.items())
