"""After training with Lightning: the model of a run on one device, measured, used and exported."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from train_anywhere.config.schema import Config
from train_anywhere.data.dataset import Splits
from train_anywhere.data.open_data import open_splits
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import CheckpointError, ConfigError
from train_anywhere.tasks import Task
from train_anywhere.training.lightning.batches import Part
from train_anywhere.training.lightning.checkpoint.random_state import seed_everything
from train_anywhere.training.lightning.checkpoint.read_weights import WEIGHTS, read_checkpoint
from train_anywhere.training.lightning.checkpoint.restoring import complete
from train_anywhere.training.lightning.dropin.answers import Answers, arrays_of, joined
from train_anywhere.training.lightning.dropin.model import lightning_refusals, make_task
from train_anywhere.training.lightning.module import TaskModule
from train_anywhere.training.lightning.parts import Opener, loaders_of
from train_anywhere.training.lightning.strategies.choose import make_strategy
from train_anywhere.training.lightning.strategies.rank_device import pick_device
from train_anywhere.training.lightning.trainer import Trainer, make_trainer
from train_anywhere.training.native_network import build_network
from train_anywhere.training.plan import Plan, limited

LARGEST_ONNX = 2**30
"""Bytes of weights that are put into the file itself, which a protobuf of 2 GiB at most is; larger ones are beside it."""


def open_trained(config: Config, folder: Path) -> "Trained":
    """The model of a run with the weights in the folder of a checkpoint. The configuration is one for a single device.

    Raises:
        CheckpointError: they can't be read, or are those of another model.
        ConfigError, DataError: the model can't be made.
    """
    seed_everything(config.seed)
    made = make_task(config)
    splits = open_splits(config.data, "lightning", config.seed, batch_size=config.data.batch_size)
    state = read_checkpoint(folder)
    if isinstance(made, Task):
        network = build_network(config, splits.facts)
        weights = {name.removeprefix("network."): value for name, value in state[WEIGHTS].items()}
    else:
        network, weights = made, state[WEIGHTS]
        made.configure_model()
        if config.checkpoint.other_objects == "leave_out":
            with suppress(RuntimeError):  # a hook that asks for the Trainer, and here is none
                complete(state, made)
        made.on_load_checkpoint(state)
    try:
        network.load_state_dict(weights, strict=getattr(network, "strict_loading", True))
    except RuntimeError as error:
        said = " ".join(str(error).split())
        raise CheckpointError(f"{folder} holds the weights of another model: {said}") from error
    return Trained(config, network.eval(), made if isinstance(made, Task) else None, splits)


@dataclass
class Trained:
    """A model and what it was trained on.

    Attributes:
        network: of a native task, or a LightningModule of anyone; in eval mode, on the CPU until it is measured.
        task: the native one, or None.
    """

    config: Config
    network: nn.Module
    task: Task | None
    splits: Splits

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the data set says of itself."""
        return self.splits.facts

    @property
    def generate(self) -> Callable[[list[int], int, float, int], list[int]] | None:
        """Continues tokens; None for a task that does not."""
        own: Any = getattr(self.task, "generate", None)
        return own and (lambda *arguments: own(self.network, *arguments))

    def measurable(self, predicting: bool = False) -> list[str]:
        """Return the splits that the data has and, unless predicting, the module has a step for; the best one to report first."""
        _, _, splits = self._loaders()
        steps = {"test": "test_step", "val": "validation_step", "train": "no step"}
        able = {
            s for s, step in steps.items() if predicting or self.task or is_overridden(step, self.network)
        }
        return [split for split in steps if split in able and getattr(splits, split) is not None]

    def measure(
        self, split: str, predicting: bool = False, batches: int | None = None
    ) -> tuple[dict[str, float], Any]:
        """The metrics of a split, as the run's own test measures them, and what the model answers to its rows.

        Args:
            predicting: collect the answers: arrays [n, ...] in the order of the rows.
            batches: stop after so many.

        Raises:
            ConfigError: there is no such split, or the module has no step for it.
        """
        trainer, part, datamodule = self._open(split)
        limit = getattr(self.config.trainer, f"limit_{split}_batches")
        count = min(limited(len(part), limit, False), batches or len(part))
        plan = Plan(self.config.data.batch_size, 1, 1, 1, 1, 1, count, count)
        trainer.follow(plan)
        loader = part.loader()
        if datamodule:
            setattr(datamodule, f"{split}_dataloader", lambda: loader)
        given = {"datamodule": datamodule} if datamodule else {"dataloaders": loader}
        with lightning_refusals():
            if self.task is None:
                return self._measure_dropin(trainer, split, predicting, given)
            return self._measure_native(trainer, split, predicting, given, plan)

    def _measure_native(
        self, trainer: Trainer, split: str, predicting: bool, given: dict[str, Any], plan: Plan
    ) -> tuple[dict[str, float], Any]:
        assert self.task
        module = TaskModule(self.task, self.network, self.config, plan, 1)
        answers = Answers(self.network) if predicting else None
        trainer.callbacks += [answers] if answers else []  # type: ignore[attr-defined]
        trainer.test(module, **given, verbose=False)
        sums = module.eval_sums.take(module.device).tolist()
        if answers:
            answers.hook.remove()
        return self.task.report(split, sums), answers.arrays() if answers else None

    def _measure_dropin(
        self, trainer: Trainer, split: str, predicting: bool, given: dict[str, Any]
    ) -> tuple[dict[str, float], Any]:
        module, target = self.network, self.config.task.target["lightning"]
        assert isinstance(module, pl.LightningModule)
        step, run = {"val": ("validation_step", trainer.validate), "test": ("test_step", trainer.test)}.get(
            split, ("", trainer.test)
        )
        measures = bool(step) and is_overridden(step, module)
        if not measures and not predicting:
            has = " or ".join(self.measurable())
            raise ConfigError(
                f"task._target_={target} has no step for --split {split}"
                + (f"; use --split {has}." if has else ".")
            )
        if predicting and not is_overridden("predict_step", module):
            raise ConfigError(
                f"task._target_={target} has no predict_step, so --predict does not know its answers."
            )
        if measures:
            run(module, **given, verbose=False)
        metrics = {name: float(value) for name, value in trainer._logger_connector.collected.items()}  # type: ignore[attr-defined]
        if not predicting:
            return metrics, None
        loader = given.get("dataloaders") or getattr(given["datamodule"], f"{split}_dataloader")()
        answers: list[Any] = trainer.predict(module, loader) or []
        several = isinstance(loader, list) and len(loader) > 1
        flat = [answer for part in answers for answer in part] if several else answers
        return metrics, joined([arrays_of(answer) for answer in flat])

    def _loaders(self) -> tuple[Trainer, Any, Splits]:
        """Return a Trainer on one device, the data module or module that brings the loaders, and the splits."""
        topology = Topology()
        device = pick_device(self.config, topology)
        strategy = make_strategy("single", self.config, topology, device, 1)
        trainer = make_trainer(self.config, topology, device, strategy)
        made = self.network if self.task is None else self.task
        return trainer, *loaders_of(self.config, self.splits, made, topology, trainer)

    def _open(self, split: str) -> tuple[Trainer, Part, pl.LightningDataModule | None]:
        """A Trainer on one device, and the part of the data."""
        trainer, source, splits = self._loaders()
        datamodule = source if isinstance(source, pl.LightningDataModule) else None
        data = getattr(splits, split)
        if data is None:
            raise ConfigError(f"data={self.config.data.name} has no {split} split.")
        prepare = getattr(self.task, "prepare", None)
        opener = Opener(self.config, Topology(), self.task is not None, prepare, lambda _: None, source)
        # in the order of the rows and not augmented, also those of the training
        return trainer, opener.part(data, "val" if split == "train" else split), datamodule

    def export(self, format: str, path: Path) -> None:
        """Write the model: "torch", its weights as plain tensors; "torch.export", its graph; or "onnx".

        Raises:
            ConfigError: a package is missing.
            CheckpointError: the model can't be written in this format.
        """
        if format == "torch":
            state = {
                n: t.detach().cpu() for n, t in self.network.state_dict().items() if isinstance(t, Tensor)
            }
            torch.save(state, path)
            return
        if format == "onnx" and (missing := [m for m in ("onnx", "onnxscript") if not find_spec(m)]):
            raise ConfigError(
                f"--export onnx needs {' and '.join(missing)}: pip install {' '.join(missing)}."
            )
        arguments, named = self._example()
        free = torch.export.Dim.AUTO
        sizes = pytree.tree_map(
            lambda v: {0: free} if isinstance(v, Tensor) and v.ndim else None, (arguments, named)
        )
        network = self.network.cpu().eval()
        try:
            if format == "onnx":
                size = sum(t.nbytes for t in network.state_dict().values() if isinstance(t, Tensor))
                torch.onnx.export(
                    network,
                    arguments,
                    path,
                    kwargs=named,
                    dynamic_shapes=(*sizes[0], *sizes[1].values()),
                    dynamo=True,
                    verbose=False,
                    external_data=size > LARGEST_ONNX,
                )
                return
            exported = torch.export.export(
                network, arguments, named, dynamic_shapes=(*sizes[0], *sizes[1].values())
            )
            torch.export.save(exported, path)
        except Exception as error:  # torch raises nearly anything at code that it can't follow
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise CheckpointError(
                f"--export {format}: this model can't be written so: {said}; use --export torch."
            ) from error

    def _example(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the network is called with, for the first batch that it is measured on."""
        seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        hook = self.network.register_forward_pre_hook(
            lambda module, args, named: seen.append((args, named)), with_kwargs=True
        )
        try:
            if splits := self.measurable():
                self.measure(splits[0], batches=1)
            else:  # only what the network is called with counts
                _, part, _ = self._open("train")
                with suppress(Exception):
                    self.network.training_step(next(iter(part.loader())), 0)  # type: ignore[operator]
        finally:
            hook.remove()
        if not seen:
            raise ConfigError(
                "the steps of this module do not call it, so nothing says what it takes; use --export torch."
            )
        example: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map(_on_cpu, seen[0])
        return example


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, Tensor) else value  # no tensor of inference mode
