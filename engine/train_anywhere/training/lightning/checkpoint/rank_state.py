"""State of each rank that no state_dict holds: random numbers, metrics so far, positions of loaders, attributes that training changes."""

import hashlib
import io
import zlib
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any, cast

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import Strategy
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, Sampler
from torchmetrics import Metric

from train_anywhere.data.torch import random_states
from train_anywhere.data.torch.loader import Batches
from train_anywhere.training.attributes import Attributes, Framework
from train_anywhere.training.lightning.checkpoint.contents import as_checkpoint_error
from train_anywhere.training.lightning.loop.course import Course
from train_anywhere.training.lightning.private import continue_logging, logged_values, validated_batches
from train_anywhere.training.plan import device_count_message

META = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx",
        "metric_attribute")  # fmt: skip
"""Attributes in which Lightning keeps the arguments of `self.log`."""

SHOWN = ("callback_metrics", "logged_metrics", "progress_bar_metrics")
"""Attributes of the Trainer with the values that user code reads."""


OWN = {*vars(nn.Module()), *vars(pl.LightningModule()), *vars(pl.LightningDataModule())}
"""Attributes of torch and Lightning in modules and data modules."""

OWN_OPTIMIZER = {*vars(torch.optim.SGD([nn.Parameter(torch.zeros(1))]))}

FEW = 1024
"""Number of values of a tensor that are compared. A change that torch counts is always found."""


class Torch(Framework):
    """Torch and Lightning.

    Args:
        optimizers: those that the Trainer steps, whose state is in a checkpoint.
    """

    own = (pl.Trainer, Strategy, Logger, DataLoader, torch.device, torch.dtype, torch.finfo)

    walked = (nn.Module, pl.LightningDataModule, Optimizer, pl.Callback, Dataset, Sampler)
    arrays = (Tensor,)
    generators = (
        *Framework.generators,
        (torch.Generator, torch.Generator.get_state, torch.Generator.set_state),
    )

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self.trained = {id(optimizer) for optimizer in optimizers}

    def version(self, array: Tensor) -> Any:
        """Return the number of changes in place and some of the values: torch does not count changes of `.data`.

        None for a tensor of inference mode.
        """
        if array.is_inference() or array.is_meta or array.layout != torch.strided:
            return None
        values = array.detach().reshape(-1)
        few = values[:: values.numel() // FEW + 1].cpu().contiguous()
        return array._version, zlib.crc32(few.view(torch.uint8).numpy().tobytes())

    def read(self, array: Tensor) -> np.ndarray | None:
        """Return the values of a tensor on the host, as bytes if numpy lacks its type. None without values."""
        if array.is_meta or array.layout != torch.strided:
            return None
        values = array.detach().cpu().contiguous()
        try:
            return values.numpy()
        except TypeError:  # bfloat16
            return values.reshape(-1).view(torch.uint8).numpy()

    def describe(self, array: Tensor) -> list[Any]:
        """Return dtype, shape and device type."""
        return [str(array.dtype).removeprefix("torch."), [*array.shape], array.device.type]

    def write(self, old: Any, values: np.ndarray, described: list[Any]) -> Any:
        """Copy into `old` if it is such a tensor, else return a new one."""
        name, shape, device = described
        dtype = getattr(torch, name)
        new = torch.from_numpy(values.copy())
        new = (new if new.dtype == dtype else new.view(dtype)).reshape(shape)
        if not isinstance(old, Tensor) or (old.shape, old.dtype) != (new.shape, dtype):
            return new.to(old.device if isinstance(old, Tensor) else device)
        with torch.no_grad():
            return old.copy_(new)

    def attributes(self, owner: Any) -> dict[str, Any] | None:
        """Return the attributes of an object of torch or Lightning that are the user's."""
        if isinstance(owner, Optimizer):
            names = () if id(owner) in self.trained else ("param_groups", "state")
            own = {n: value for n, value in vars(owner).items() if n not in OWN_OPTIMIZER}
            return {n: getattr(owner, n) for n in names} | own
        if not isinstance(owner, self.walked):
            return None
        if isinstance(owner, pl.Callback) and not is_of_user(owner):
            return {}
        states = owner.metric_state if isinstance(owner, Metric) else {}
        found = {n: value for n, value in vars(owner).items() if n not in OWN and n not in states}
        # ddp sets the module's own `forward` as an attribute
        found = {n: v for n, v in found.items() if type(v) is not MethodType or v.__self__ is not owner}
        if isinstance(owner, (pl.LightningModule, pl.LightningDataModule)):
            found["hparams"] = owner.hparams
        if isinstance(owner, nn.Module):
            tensors = [*owner.named_buffers(recurse=False), *owner.named_parameters(recurse=False)]
            found |= dict([*owner.named_children(), *tensors])
        return found


def is_of_user(callback: pl.Callback) -> bool:
    """Return whether a callback's class is neither Lightning's nor of this project."""
    return type(callback).__module__.split(".")[0] not in ("lightning", "pytorch_lightning", "train_anywhere")


def of_trainer(trainer: pl.Trainer, report: Callable[[str], None]) -> Attributes:
    """Return the attributes of the module, the user's callbacks and data module, and the optimizers."""
    module, optimizers = trainer.lightning_module, trainer.optimizers
    persistent = module.state_dict(keep_vars=True).keys()

    def held() -> dict[str, Any]:
        buffers = ((name, buffer) for name, buffer in module.named_buffers() if name in persistent)
        schedules = ((f"schedule {n}", c.scheduler) for n, c in enumerate(trainer.lr_scheduler_configs))
        return dict([*module.named_parameters(), *buffers, *schedules])

    roots: dict[str, Any] = {f"optimizers[{n}]": optimizer for n, optimizer in enumerate(optimizers)}
    roots |= {"module": module, "data": trainer.datamodule}
    roots |= {f"callbacks[{n}]": one for n, one in enumerate(trainer.callbacks) if is_of_user(one)}
    return Attributes(roots, Torch(optimizers), held, report)


def of_loader(loader: Any, report: Callable[[str], None]) -> Attributes:
    """Return the attributes of a loader's samplers and of its data set in this process."""
    names = ("sampler", "batch_sampler", "dataset", "generator")
    roots = {f"loader.{name}": getattr(loader, name, None) for name in names}
    return Attributes(roots, Torch([]), dict, report)


def waiting_gradients(trainer: pl.Trainer) -> dict[str, Tensor]:
    """Return the gradients that no step of the Trainer will compute again, by the parameter's name."""
    module = trainer.lightning_module
    groups = (group for optimizer in trainer.optimizers for group in optimizer.param_groups)
    stepped = {p for group in groups for p in group["params"]}
    manual = not module.automatic_optimization
    named = module.named_parameters()
    return {name: p.grad for name, p in named if p.grad is not None and (manual or p not in stepped)}


def to_tensor(data: bytes) -> Tensor:
    """Return bytes as uint8 [n], which a checkpoint can store."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


class RankState(pl.Callback):
    """Callback that saves by rank: random states, the sums of `self.log`, torchmetrics and the positions of loaders.

    With it, the metrics of an interrupted epoch are those of an uninterrupted one, and so is a schedule that watches one of them.
    Each rank derives its own seed from that of the run, so that dropout differs between the ranks' rows.
    """

    def __init__(self, seed: int, course: Course, report: Callable[[str], None]) -> None:
        self.seed, self.course, self.report = seed, course, report
        self.saved: dict[str, Any] = {}
        self.saved_ranks = 0
        self.attributes: Attributes | None = None
        self._others: list[bytes] = []
        self._kept: dict[str, Any] = {}
        # the state with which this run resumed, and the batch
        self._resumed: tuple[dict[str, Any], int] = ({}, -1)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start a new stream of numbers if none was saved for this number of ranks."""
        if self.saved_ranks == trainer.world_size:
            return
        if self.saved_ranks:
            same_batch = isinstance(getattr(trainer.train_dataloader, "dataset", None), Batches)
            self.report(device_count_message(self.saved_ranks, trainer.world_size, same_batch))
        # rank 0 of a new run continues with the numbers that Lightning alone would draw
        if trainer.global_rank or self.saved_ranks:
            sequence = np.random.SeedSequence([self.seed, self.course.steps_done, trainer.global_rank])
            random_states.seed_everything(int(sequence.generate_state(1)[0]))

    def keep_states(self, trainer: pl.Trainer) -> None:
        """Keep the state before a save or a validation, whose hooks may draw numbers and log values.

        A run that is stopped in a validation within training runs it again.
        """
        self._kept = self._kept or self._read_state(trainer)

    def before_validation(self, trainer: pl.Trainer) -> None:
        """Keep the state before a validation. If the run resumes with it, hooks before it have run twice: restore what they change."""
        saved, batch = self._resumed
        if saved and batch == trainer.fit_loop.total_batch_idx:
            self._restore(trainer, saved)
        self._resumed = ({}, -1)
        self.keep_states(trainer)

    def _read_state(self, trainer: pl.Trainer) -> dict[str, Any]:
        """Return the random states, what no state_dict holds, and the values that user code reads from the Trainer."""
        module: Any = trainer.lightning_module
        return {
            "attributes": to_tensor(self.attributes.save() if self.attributes else b""),
            "gradients": {name: gradient.clone() for name, gradient in waiting_gradients(trainer).items()},
            "shown": {
                kind: apply_to_collection(dict(getattr(trainer, kind)), Tensor, Tensor.detach)
                for kind in SHOWN
            },
            "random": random_states.pack(random_states.get_states()),
            "validated": dict(validated_batches(trainer)),
            "cuda": torch.cuda.get_rng_state(module.device) if module.device.type == "cuda" else None,
            "metrics": {
                name: {n: [*v] if isinstance(v, list) else v.clone() for n, v in metric.metric_state.items()}
                for name, metric in _metrics(module).items()
            },
        }

    def release_states(self, *_: Any) -> None:
        """Forget the state that was kept."""
        self._kept = {}

    on_validation_end = release_states

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Gather the states of all ranks."""
        strategy: Any = trainer.strategy
        logged, loaders = _logged_metrics(trainer), strategy.training_loaders.state()
        state = self._kept or self._read_state(trainer)
        checkpoint["rank_states"] = gather({**state, "logged": logged, "loader": loaders}, trainer)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep this rank's state until training starts: the setup draws too. Raises CheckpointError if it is none."""
        with as_checkpoint_error(trainer.ckpt_path):
            saved = checkpoint["rank_states"]
            self.saved_ranks, same = len(saved), len(saved) == trainer.world_size
            ranks = [unpack(one) for one in ([saved[trainer.global_rank]] if same else saved)]
            self.saved, self._others = ranks[0], [one["attributes"].numpy().tobytes() for one in ranks]
            random_states.unpack(self.saved["random"])
        strategy: Any = trainer.strategy
        if same:
            strategy.training_loaders.keep(self.saved["loader"])
            return
        if any(one["logged"] for one in ranks):
            self.report(
                f"metrics of the interrupted epoch start anew: {len(saved)} ranks counted them, and this run has {trainer.world_size}."
            )
        self.saved |= {"metrics": {}, "logged": [], "gradients": {}, "random": None}

    def training_started(self, trainer: pl.Trainer) -> None:
        """Restore the state after the last batch, without what start hooks drew and logged again."""
        saved, self.saved = self.saved, {}
        self.attributes = of_trainer(trainer, self.report)
        if not saved or not trainer.ckpt_path:  # LearningRateFinder restores a checkpoint of its own
            return
        module: Any = trainer.lightning_module
        continue_logging(trainer, trainer.fit_loop.epoch_loop.batch_progress.current.ready)
        logged_values(trainer).clear()  # Lightning refuses other arguments for a name
        self._restore(trainer, saved)
        validated_batches(trainer).update(saved["validated"])
        for name, gradient in saved["gradients"].items():
            module.get_parameter(name).grad = gradient.to(module.device)
        for entry in saved["logged"]:
            _restore_logged(trainer, module, entry)
        for kind, values in saved["shown"].items():
            shown = getattr(trainer, kind)
            shown.clear()
            shown.update(move_data_to_device(values, module.device))
        self._resumed = (saved, trainer.fit_loop.total_batch_idx)

    def _restore(self, trainer: pl.Trainer, saved: dict[str, Any]) -> None:
        """Restore the states of torchmetrics, what training has changed in attributes, and the random states."""
        module = trainer.lightning_module
        found = _metrics(module)
        for name, state in saved["metrics"].items():
            for attribute, value in state.items() if name in found else ():
                setattr(found[name], attribute, move_data_to_device(value, module.device))
        counted = () if saved["metrics"] else tuple(f"module.{name}." for name in found)
        assert self.attributes
        self.attributes.restore(self._others, leave=lambda path: path.startswith(counted))
        if saved["random"]:
            with as_checkpoint_error(trainer.ckpt_path):
                random_states.restore(random_states.unpack(saved["random"]))
                if saved["cuda"] is not None and torch.cuda.is_available():
                    torch.cuda.set_rng_state(saved["cuda"])


def _metrics(module: nn.Module) -> dict[str, Metric]:
    return {name: one for name, one in module.named_modules() if isinstance(one, Metric)}


def _logged_metrics(trainer: pl.Trainer) -> list[dict[str, Any]]:
    """Return the values that were logged in this training epoch."""
    entries = []
    for metric in logged_values(trainer).values():
        meta = metric.meta
        if metric.has_reset:
            continue
        kept = {
            "reduce_fx": meta.reduce_fx.__name__,
            "sync": meta.sync.should,
            "first": meta.sync.rank_zero_only,
            "caches": {n: v for n, v in vars(metric).items() if v is None or isinstance(v, Tensor)},
        }
        entries.append({name: getattr(meta, name) for name in META} | kept)
    return entries


def _restore_logged(trainer: pl.Trainer, module: pl.LightningModule, entry: dict[str, Any]) -> None:
    results, state = cast(Any, logged_values(trainer)), move_data_to_device(entry["caches"], module.device)
    value = state["value"] if "value" in state else module.get_submodule(entry["metric_attribute"])
    results.log(
        value=value,
        reduce_fx=getattr(torch, entry["reduce_fx"]),
        sync_dist=False,
        sync_dist_fn=trainer.strategy.reduce,
        rank_zero_only=entry["first"],
        batch_size=1,
        **{key: entry[key] for key in META},
    )
    metric = results[f"{entry['fx']}.{entry['name']}"]
    metric.meta.sync.should = entry["sync"]
    vars(metric).update(state)


def gather_checksums(parts: Iterable[bytes], trainer: pl.Trainer) -> list[int]:
    """Return a checksum of the bytes of each rank. All ranks must call it."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    strategy = trainer.strategy
    own = torch.tensor([int.from_bytes(digest.digest()[:6])], dtype=torch.int64, device=strategy.root_device)
    return list(strategy.all_gather(own).flatten().tolist())


def unpack(state: Tensor) -> dict[str, Any]:
    """Return the state of a rank from its bytes, which `gather` returned."""
    return dict(torch.load(io.BytesIO(state.numpy().tobytes()), weights_only=True))


def gather(own: dict[str, Any], trainer: pl.Trainer) -> list[Tensor]:
    """Return the state of each rank as bytes (uint8 [n]). All ranks must call it."""
    buffer = io.BytesIO()
    torch.save(own, buffer)
    packed = to_tensor(buffer.getvalue())
    if trainer.world_size == 1:
        return [packed]
    device, strategy = trainer.strategy.root_device, trainer.strategy
    sizes = strategy.all_gather(torch.tensor([len(packed)], device=device)).flatten().tolist()
    gathered = strategy.all_gather(packed.to(device)).flatten().cpu()
    return [one.clone() for one in gathered.split(sizes)]
