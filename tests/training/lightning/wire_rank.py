"""One rank that counts what a training loop sends and waits for; a test starts it with torchrun's variables.

    python wire_rank.py ours|lightning|raw ddp|fsdp|horovod

Prints, as JSON, how often each collective and each wait of the host for a value occur in 20 more steps of an epoch:
ours, with Lightning's signal flag, or in a loop by hand.
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from torch import distributed
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from src.config.compose import compose
from src.config.load import load
from src.config.schema import Config
from src.data.order import BatchOrder
from src.data.sets import open_splits
from src.data.torch_loader import Batches, torch_loader
from src.data.torch_samples import Reader
from src.distributed.discover import discover
from src.distributed.horovod_init import import_horovod, start_horovod
from src.distributed.topology import Topology
from src.tasks.lightning.classification import Classification
from src.training.lightning import fast_loop
from src.training.lightning.callbacks import MetricsCallback
from src.training.lightning.module import TaskModule
from src.training.lightning.optim import make_optimizer
from src.training.lightning.strategies.blocks import shard
from src.training.lightning.strategies.make import make_strategy
from src.training.lightning.trainer import make_trainer
from src.training.network import build_network
from src.training.plan import make_plan
from src.training.progress import Progress
from src.training.stop import Stop

SYNTHETIC = [
    "data=synthetic",
    "data.batch_size=8",
    "data.height=8",
    "data.width=8",
    "data.channels=1",
    "data.classes=10",
]


def with_trainer(config: Config, topology: Topology, flag: bool) -> None:
    """Our Trainer; with `flag`, it broadcasts the signal flag as Lightning does by itself."""
    splits = open_splits(config.data, "lightning")
    batches = len(loader(config, topology))
    plan = make_plan(config, batches, 0, 0, topology.world_size)
    task = Classification()
    cpu, world_size = torch.device("cpu"), topology.world_size
    strategy = make_strategy(config.strategy.name, config, topology, cpu, world_size)
    trainer = make_trainer(config, topology, cpu, strategy)
    if flag:
        fast_loop.unusual = lambda trainer: "Lightning's own loop asks for it"
        theirs = _TrainingEpochLoop._broadcast_sigterm_tensor
        fast_loop.FastEpochLoop._broadcast_sigterm_tensor = theirs
    trainer.follow(plan)
    trainer.callbacks.append(MetricsCallback(config, plan, Stop(), Progress("none", plan), task))
    network = build_network(config, splits.facts)
    trainer.fit(TaskModule(task, network, config, plan, world_size), loader(config, topology))


def raw(config: Config, topology: Topology) -> None:
    """The loop by hand."""
    model = build_network(config, open_splits(config.data, "lightning").facts)
    if config.strategy.name != "horovod" and not distributed.is_initialized():
        distributed.init_process_group("gloo")
    if config.strategy.name == "ddp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif config.strategy.name == "fsdp":
        shard(model, torch.device("cpu"))
    optimizer = make_optimizer(config, model)
    if config.strategy.name == "horovod":
        start_horovod(topology, hvd())
        optimizer = hvd().DistributedOptimizer(optimizer, model.named_parameters())
    for (image, label), weight in loader(config, topology):
        optimizer.zero_grad()
        (cross_entropy(model(image), label, reduction="none") * weight).mean().backward()
        optimizer.step()


def loader(config: Config, topology: Topology) -> torch.utils.data.DataLoader:
    """This rank's batches."""
    train = open_splits(config.data, "lightning").train
    order = BatchOrder(8, seed=0, rank=topology.rank, world_size=topology.world_size, train=True)
    return torch_loader(Batches(Reader(train, 0, Classification().prepare), order, True))


def hvd() -> Any:
    """Horovod, with a count of what it is asked for."""
    from horovod.torch import mpi_ops

    library = mpi_ops.mpi_lib
    for name in dir(library):
        operation = re.match("horovod_torch_(grouped_)?(allreduce|allgather|broadcast|alltoall)_async", name)
        function = getattr(library, name)
        if operation and not hasattr(function, "counted"):

            def counted(*arguments: Any, called: Any = function, name: str = operation[0]) -> Any:
                asked[name] += 1
                return called(*arguments)

            counted.counted = True  # type: ignore[attr-defined]
            setattr(library, name, counted)
    return import_horovod("torch")


asked: Counter[str] = Counter()


def count(kind: str, strategy: str, steps: int) -> Counter[str]:
    """Collectives and waits in one epoch of so many steps."""
    asked.clear()
    config = load(
        compose(
            [
                *SYNTHETIC,
                f"data.length={8 * steps}",
                f"strategy={strategy}",
                "optimizer=sgd",
                "trainer.max_epochs=1",
                "trainer.log_every_n_steps=1000",
                "monitor.progress=none",
            ]
        )
    )
    topology = discover()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        if kind == "raw":
            raw(config, topology)
        else:
            with_trainer(config, topology, flag=kind == "lightning")
    names = asked + Counter({event.key: event.count for event in profiler.key_averages()})
    return Counter(
        {n: c for n, c in names.items() if n.startswith(("gloo:", "horovod", "aten::_local_scalar_dense"))}
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[2] == "horovod":
        hvd()
    twenty, forty = count(*sys.argv[1:], 20), count(*sys.argv[1:], 40)
    print(json.dumps({name: forty[name] - twenty[name] for name in sorted(forty)}))
