"""Lightning sees the ranks that the topology names."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.layer_sync import TorchSyncBatchNorm
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import nn

from train_anywhere.config.checks.strategy_table import SUPPORTED
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError
from train_anywhere.training.lightning.run import end_process_group, make_setup
from train_anywhere.training.lightning.setup import make_trainer
from train_anywhere.training.lightning.strategies.choose import make_strategy, pick_device
from train_anywhere.training.lightning.strategies.fsdp import find_blocks

from ..conftest import MakeConfig


@pytest.mark.parametrize("name", sorted(set(SUPPORTED["lightning"]) - {"horovod"}))
def test_every_strategy_of_the_table_can_be_made(name: str, make_config: MakeConfig) -> None:
    config = make_config("strategy=auto" if name == "single" else f"strategy={name}")
    assert isinstance(make_strategy(name, config, Topology(), torch.device("cpu")), Strategy)


def test_bf16_is_sent_between_gpus_only(make_config: MakeConfig) -> None:
    config = make_config("strategy=ddp", "strategy.compression=bf16")
    with pytest.raises(ConfigError, match=r"needs GPUs.* use strategy\.compression=fp16"):
        make_strategy("ddp", config, Topology(), torch.device("cpu"))


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_sync_batchnorm_is_for_several_gpus(name: str, make_config: MakeConfig) -> None:
    """Two ranks on CPUs are refused. A single process has the whole batch, so nothing is done."""
    config, cpu = make_config(f"strategy={name}", "trainer.sync_batchnorm=true"), torch.device("cpu")
    two = Topology(world_size=2, local_world_size=2)
    with pytest.raises(ConfigError, match=r"needs GPUs.* use trainer\.sync_batchnorm=false"):
        make_strategy(name, config, two, cpu)
    for topology, layers in ((Topology(), type(None)), (two, TorchSyncBatchNorm)):
        alone = make_strategy(name, config, Topology(), cpu)
        assert type(make_trainer(config, topology, alone).strategy._layer_sync) is layers


class Looked(Exception):
    """Ends a training before its first step."""


class Look(pl.Callback):
    """Sees the layers that are trained."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.norms = [type(m) for m in pl_module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        raise Looked


def test_fsdp_splits_the_layers_of_torch(make_config: MakeConfig) -> None:
    """Before the model is split, which afterwards has no other."""
    made, look = make_setup(make_config("strategy=fsdp", "model=cnn"), Topology()), Look()
    made.trainer.strategy._layer_sync = TorchSyncBatchNorm()
    made.trainer.callbacks.append(look)
    try:
        with pytest.raises(Looked):
            made.trainer.fit(made.module, made.loaders.opened["train"], [])
    finally:
        del made
        end_process_group()
    assert look.norms == [nn.SyncBatchNorm] * 2


@pytest.mark.parametrize("rank", [0, 2])
def test_the_places_of_an_uneven_job(rank, make_config, monkeypatch) -> None:
    """The first of two nodes has two ranks: Lightning's own arithmetic would give 2 or 4 ranks."""
    monkeypatch.setattr(rank_zero_only, "rank", 0, raising=False)  # is put back afterwards
    place = {"local_rank": 0, "node_rank": rank // 2, "local_world_size": 2 - rank // 2}
    topology = Topology(
        rank=rank, world_size=3, nodes=2, coordinator_address="node0", coordinator_port=29500, **place
    )
    config = make_config("strategy=ddp", "data.batch_size=96")
    cpu = torch.device("cpu")
    strategy = make_strategy("ddp", config, topology, cpu)
    trainer = make_trainer(config, topology, strategy)
    trainer.strategy.set_world_ranks()
    assert (trainer.world_size, trainer.global_rank, trainer.local_rank) == (3, rank, 0)
    assert (trainer.node_rank, trainer.num_nodes) == (rank // 2, 2)
    assert trainer.is_global_zero is (rank == 0)


def test_slurm_variables_do_not_matter(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning would refuse a step without --ntasks-per-node and handle signals itself."""
    for name, value in {
        "NTASKS": "3",
        "NTASKS_PER_NODE": "2",
        "JOB_ID": "1",
        "JOB_NAME": "train",
        "PROCID": "2",
    }.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    config = make_config()
    cpu = torch.device("cpu")
    trainer = make_trainer(config, Topology(), make_strategy("single", config, Topology(), cpu))
    assert (trainer.world_size, trainer.global_rank) == (1, 0)


def test_fsdp_tests_without_inference_mode(make_config: MakeConfig) -> None:
    """Parameters that fsdp makes in inference mode with NCCL break `state_dict()` in hooks."""
    assert not make_setup(
        make_config("strategy=fsdp", "model=cnn"), Topology()
    ).trainer.test_loop.inference_mode
    assert make_setup(
        make_config("strategy=single", "model=cnn"), Topology()
    ).trainer.test_loop.inference_mode


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
