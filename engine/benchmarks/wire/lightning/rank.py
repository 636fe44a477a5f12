"""One rank that counts what a training loop sends and waits for; `benchmarks.wire.count` starts it with torchrun's variables.

    python rank.py ours|lightning|raw ddp|fsdp|horovod [WORD ...]

Prints, as JSON, how often each collective and each wait of the host for a value occur in 20 more steps of an epoch, and the bytes:
ours, with Lightning's signal flag, or in a loop by hand; and the same of one more row of metrics, which a loop by hand has not.
"""

import gc
import json
import math
import re
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

sys.path.insert(1, str(Path(__file__).resolve().parents[4] / "engine"))

import lightning.pytorch as pl
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from benchmarks.wire import STEPS
from src.tasks.lightning.classification import Classification
from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.data.open_data import open_splits
from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.torch.loader import Batches, torch_loader
from train_anywhere.distributed.discover import discover
from train_anywhere.distributed.horovod.initialize import import_horovod, start_horovod
from train_anywhere.distributed.topology import Topology
from train_anywhere.features.feature import Observers
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.early_stopping import Timer
from train_anywhere.training.lightning.dropin.visible import RunLogger, listen
from train_anywhere.training.lightning.loop.callbacks import MetricsCallback
from train_anywhere.training.lightning.loop.course import Agreement, Course
from train_anywhere.training.lightning.loop.over_ranks import OverRanks
from train_anywhere.training.lightning.loop.tensorboard import TorchRecording
from train_anywhere.training.lightning.optim import ConfiguredOptimizer, make_optimizer
from train_anywhere.training.lightning.private import forget_groups
from train_anywhere.training.lightning.setup import make_trainer
from train_anywhere.training.lightning.strategies.choose import make_strategy
from train_anywhere.training.lightning.strategies.fsdp import find_blocks
from train_anywhere.training.plan import build_network, make_user_plan
from train_anywhere.training.reporting.progress import Progress

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
    plan = make_user_plan(config, len(loader(config, topology)), False, False, 8 // topology.world_size)
    course = Course(plan)
    cpu, world_size = torch.device("cpu"), topology.world_size
    strategy = make_strategy(config.strategy.name, config, topology, cpu)
    trainer = make_trainer(config, topology, strategy)
    if flag:
        del trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor
    trainer.callbacks.append(Watched())
    process = RankProcess(RunDir(Path.cwd()), topology, Stop())
    progress = Progress(config, process, plan, world_size, splits.facts, TorchRecording, lambda: None)
    agreement = Agreement(course, Stop(), Timer(config.trainer), progress, Observers(), writes=False)
    optimizer = ConfiguredOptimizer(trainer, config, course, world_size)
    module = Classification(build_network(config, splits.facts), optimizer.make_optimizer)
    over_ranks = OverRanks(trainer, module, [])
    metrics = MetricsCallback(config, agreement, over_ranks, None, None, lambda trainer: None)
    listen(trainer, [RunLogger("run", Path.cwd(), "")], metrics.receive)
    trainer.callbacks += [over_ranks, optimizer, metrics]
    trainer.fit(module, loader(config, topology))


def raw(config: Config, topology: Topology) -> None:
    """The loop by hand."""
    model = build_network(config, open_splits(config.data, "lightning").facts)
    if config.strategy.name != "horovod" and not distributed.is_initialized():
        distributed.init_process_group("gloo")
    if config.strategy.name == "ddp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif config.strategy.name == "fsdp":
        mesh = init_device_mesh("cpu", (topology.world_size,))
        weakref.finalize(model, forget_groups, mesh)
        for block in [*find_blocks(model), model]:
            fully_shard(block, mesh=mesh)
    optimizer = make_optimizer(config.optimizer, config.trainer.precision, model)
    if config.strategy.name == "horovod":
        start_horovod(topology, hvd())
        optimizer = hvd().DistributedOptimizer(optimizer, model.named_parameters())
    with watched():
        for image, label in loader(config, topology):
            optimizer.zero_grad()
            cross_entropy(model(image.permute(0, 3, 1, 2).contiguous()), label).backward()
            optimizer.step()


def loader(config: Config, topology: Topology) -> torch.utils.data.DataLoader:
    """This rank's batches."""
    train = open_splits(config.data, "lightning").train
    order = BatchOrder(
        8, seed=0, rank=topology.rank, world_size=topology.world_size, train=True, drop_last=True
    )
    return torch_loader(Batches(train, order))


def hvd() -> Any:
    """Horovod, with a count of what it is asked for."""
    from horovod.torch import mpi_ops

    library = mpi_ops.mpi_lib
    for name in dir(library):
        operation = re.match("horovod_torch_(grouped_)?(allreduce|allgather|broadcast|alltoall)_async", name)
        function = getattr(library, name)
        if operation and not hasattr(function, "counted"):

            def counted(*arguments: Any, called: Any = function, name: str = operation[0]) -> Any:
                given = arguments[0] if isinstance(arguments[0], list) else [arguments[0]]
                asked.update({name: 1, f"{name} bytes": sum(tensor.nbytes for tensor in given)})
                return called(*arguments)

            counted.counted = True  # type: ignore[attr-defined]
            setattr(library, name, counted)
    return import_horovod("torch")


asked: Counter[str] = Counter()


def count(kind: str, strategy: str, steps: int, every: int, words: list[str]) -> Counter[str]:
    """Collectives and waits in one epoch of so many steps; `every` so many there is a row of metrics."""
    asked.clear()
    config = load(
        compose(
            [
                *SYNTHETIC,
                f"data.length={8 * steps}",
                f"strategy={strategy}",
                "optimizer=sgd",
                "trainer.max_epochs=1",
                f"trainer.log_every_n_steps={every}",
                "monitor.progress=none",
                *words,
            ]
        )
    )
    topology = discover()
    if kind == "raw":
        raw(config, topology)
    else:
        with_trainer(config, topology, flag=kind == "lightning")
    return Counter(asked)


@contextmanager
def watched() -> Iterator[None]:
    """Within it, whatever torch.distributed is asked for counts too. It holds on to weights, so that FSDP can't split them there."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        yield
    for event in profiler.profiler.kineto_results.events():
        name = event.name()
        if name.startswith(("gloo:", "aten::_local_scalar_dense")):
            asked[name] += 1
        if name.startswith("gloo:"):
            given = zip(event.shapes(), event.dtypes(), strict=True)
            asked[f"{name} bytes"] += sum(math.prod(shape) * SIZES[kind] for shape, kind in given if shape)


class Watched(pl.Callback):
    """The training, from its first batch to the end of its last epoch."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """All is split, and in its place."""
        self.stack = ExitStack()
        self.stack.enter_context(watched())

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Nothing of the profiler may be left."""
        self.stack.close()
        gc.collect()


SIZES = {"float": 4, "double": 8, "long int": 8, "int": 4, "unsigned char": 1, "bool": 1}
"""Bytes of a number, by the profiler's name of its type."""


def main(kind: str, strategy: str, *words: str) -> None:
    """Print what 20 steps send more than others, and what one row more."""
    torch.set_num_threads(1)
    if strategy == "horovod":
        hvd()
    twenty, forty = (count(kind, strategy, steps, 1000, list(words)) for steps in (STEPS, 2 * STEPS))
    row = count(kind, strategy, 2 * STEPS, STEPS, list(words)) if kind != "raw" else forty
    print(json.dumps({"steps": less(forty, twenty), "row": less(row, forty)}))


def less(more: Counter[str], fewer: Counter[str]) -> dict[str, int]:
    """The difference, zeros too."""
    return {name: more[name] - fewer[name] for name in sorted(more)}


if __name__ == "__main__":
    main(*sys.argv[1:])
