"""Which layers FSDP gathers by themselves."""

import pytest
from torch import nn

from train_anywhere.errors import ConfigError
from train_anywhere.training.lightning.strategies.fsdp import find_blocks


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)


class Transformer(nn.Module):
    """The usual layout: a list of blocks, and a head that shares the weights of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(9, 4), nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.embedding.weight


def test_a_list_is_split_block_by_block_and_shared_weights_stay_together() -> None:
    network = Transformer()
    assert find_blocks(network) == list(network.blocks)


def test_blocks_by_the_name_of_their_class() -> None:
    network = Transformer()
    assert find_blocks(network, ["Linear"]) == [block.inner for block in network.blocks]
    with pytest.raises(
        ConfigError, match=r"no layer of the network has such a class\. Did you mean 'Block'\?"
    ):
        find_blocks(network, ["Blok"])
