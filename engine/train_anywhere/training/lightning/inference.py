"""The trained model of a Lightning run on one device: measure, use and export it."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.utils.data import DataLoader

from train_anywhere.config.checks.targets import task_has_network
from train_anywhere.config.schema import Config
from train_anywhere.data.array_data import check_answers, flatten_arrays
from train_anywhere.data.dataset import DataSet, Splits
from train_anywhere.data.open_data import open_splits
from train_anywhere.data.torch.random_states import seed_everything
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import CheckpointError, ConfigError
from train_anywhere.files.removal import print_once
from train_anywhere.training.lightning.checkpoint.contents import WEIGHTS, read_checkpoint
from train_anywhere.training.lightning.dropin.model import explain_lightning_errors, make_task
from train_anywhere.training.lightning.dropin.validated_weights import ValidatedWeights
from train_anywhere.training.lightning.loaders import Opener, find_source
from train_anywhere.training.lightning.setup import make_trainer
from train_anywhere.training.lightning.strategies.choose import make_strategy, pick_device
from train_anywhere.training.lightning.strategies.hooks import add_left_out
from train_anywhere.training.lightning.weights import (
    Adapters,
    add_adapters,
    find_adapters,
    load_initial_weights,
    plain_name,
    refuse_other_weights,
    write_safetensors,
)
from train_anywhere.training.plan import build_network


def as_numpy(tree: Any) -> Any:
    """Return the tree with numpy arrays in place of tensors, float32 for bfloat16."""
    readable = lambda t: t.float() if t.dtype == torch.bfloat16 else t  # noqa: E731
    return apply_to_collection(tree, Tensor, lambda t: readable(t.detach()).cpu().numpy())


LARGEST_ONNX = 2**30
"""Most bytes of weights inside an ONNX file, which is a protobuf of at most 2 GiB; more are written to a second file."""


def open_trained_model(config: Config, folder: Path, splits: Splits | None = None) -> "TrainedModel":
    """Return the model of a run with a checkpoint's weights, and with `splits` in place of its data. Raises CheckpointError etc."""
    seed_everything(config.seed)
    splits = splits or open_splits(config.data, "lightning", config.seed, batch_size=config.data.batch_size)
    supplied: dict[str, Any] = {}
    if not task_has_network(config.task, "lightning"):
        supplied = {"network": build_network(config, splits.facts), "make_optimizer": lambda network: None}
    module = make_task(config.task, **supplied)
    network = supplied.get("network", module)
    state = read_checkpoint(folder)
    module.configure_model()
    if config.checkpoint.other_objects == "leave_out":
        with suppress(RuntimeError):  # a hook may need the Trainer, which does not exist here
            add_left_out(state, module)
    module.on_load_checkpoint(state)
    if add_adapters(network, config, network is module):
        load_initial_weights(config.init, module, lambda line: None)  # checkpoints do not hold the base
    try:
        found = module.load_state_dict(state[WEIGHTS], strict=False)
        if module.strict_loading and found is not None and found.missing_keys:
            raise RuntimeError(f"Missing key(s) in state_dict: {', '.join(found.missing_keys)}.")
        if module.strict_loading and found is not None and found.unexpected_keys:
            print_once(f"{', '.join(found.unexpected_keys)}: weights that only training adds are left out.")
    except RuntimeError as error:
        message = " ".join(str(error).split())
        raise CheckpointError(f"{folder} holds the weights of another model: {message}") from error
    module.eval()
    return TrainedModel(config, module, network, splits)


class TrainedModel:
    """A trained model and its data.

    Attributes:
        module: in eval mode, on the CPU until it is measured.
        network: the network of the section `model`, or the module itself.
        facts: facts about the data set, such as the number of classes.
        call_arguments: arguments with which a prediction calls the network.
        train_split: the data that the model was trained on.
        generate: continues a sequence of tokens; None without `generate` of a task that gets its network.
    """

    def __init__(
        self, config: Config, module: pl.LightningModule, network: nn.Module, splits: Splits
    ) -> None:
        self.config, self.module, self.network, self.splits = config, module, network, splits
        self.facts, self.call_arguments, self.train_split = splits.facts, dict[str, Any](), splits.train
        self.generate: Any = None if network is module else getattr(module, "generate", None)
        self._open_loader = Opener(config, Topology(), lambda line: None).open_loader

    def predict_rows(self, rows: DataSet) -> Any:
        """Return what `predict_step` returns for rows of a data set, arrays [n, ...] by name."""
        self._require_predict_step()
        return self._predict(self._open_loader(rows, "predict"))

    def predict_arrays(self, array: np.ndarray) -> Any:
        """Return what the user's own module returns for rows [n, ...], batch by batch."""
        rows: Any = torch.from_numpy(np.ascontiguousarray(array))
        return self._predict(DataLoader(rows, self.config.data.batch_size))

    @explain_lightning_errors()
    def _predict(self, loader: Any) -> dict[str, np.ndarray]:
        arguments = self._arguments(loader, "predict")
        answers: list[Any] = self._make_trainer().predict(self.module, **arguments) or []
        if isinstance(loader, list) and len(loader) > 1:
            answers = [batch for part in answers for batch in part]
        if not answers:
            raise ConfigError("there is no row to predict.")
        named = [flatten_arrays(as_numpy(batch)) for batch in answers]
        return {name: np.concatenate([np.atleast_1d(one[name]) for one in named]) for name in named[0]}

    def _require_predict_step(self) -> None:
        if not is_overridden("predict_step", self.module):
            raise ConfigError(
                f"task._target_={self.config.task.target['lightning']} has no predict_step, which a prediction needs; add one, or call the "
                "module yourself: load_model(RUN)(batch)."
            )

    def _make_trainer(self) -> pl.Trainer:
        """Return a Trainer on one device, which measures the checkpoint's weights also if hooks swap others in."""
        config, topology = self.config, Topology()
        strategy = make_strategy("single", config, topology, pick_device(config.trainer, topology))
        trainer = make_trainer(config, topology, strategy)
        trainer.callbacks.insert(0, ValidatedWeights())
        return trainer

    def list_splits(self, predicting: bool = False) -> list[str]:
        """Return the splits with data and, unless predicting, a step; the best one first."""
        source = self._source
        able = [split for split in ("test", "val", "train") if predicting or self._measures(split)]
        if source is None:
            return [split for split in able if getattr(self.splits, split) is not None]
        return [split for split in able if is_overridden(f"{split}_dataloader", source)]

    def _measures(self, split: str) -> bool:
        """Return whether a step measures a split: training rows, without augmentation, only in a task with the network of `model`."""
        if split == "train" and self.network is self.module:
            return False
        return is_overridden("test_step" if split == "test" else "validation_step", self.module)

    @property
    def _source(self) -> Any:
        """The module or data module that returns the loaders, or None."""
        return find_source(self.config.data, self.splits, self.module)

    @explain_lightning_errors()
    def measure(
        self, split: str, predicting: bool = False, batches: int | None = None
    ) -> tuple[dict[str, float], Any]:
        """Return the metrics of a split, measured as in the run's own test, and the predictions.

        With `predicting` these are arrays [n, ...] by name, in the order of the rows. `batches` limits the measured ones. Raises
        ConfigError if the data has no such split, or the module no step for it.
        """
        trainer, module = self._make_trainer(), self.module
        loader = self._open(split, trainer)
        limit = batches or getattr(self.config.trainer, f"limit_{split}_batches")
        trainer.limit_val_batches = trainer.limit_test_batches = limit
        measures = self._measures(split)
        if predicting:
            self._require_predict_step()
        elif not measures:
            has, target = " or ".join(self.list_splits()), self.config.task.target["lightning"]
            use = f"; use --split {has}." if has else "."
            raise ConfigError(f"task._target_={target} has no step for --split {split}{use}")
        if measures:
            run = trainer.test if split == "test" else trainer.validate
            run(module, **self._arguments(loader, split), verbose=False)
        logged = trainer.callback_metrics
        metrics = {
            n.replace("val/", f"{split}/") if split == "train" else n: float(v)
            for n, v in logged.items()
            if n.removesuffix("_step") + "_epoch" not in logged
        }
        return metrics, self._predict(loader) if predicting else None

    def _open(self, split: str, trainer: pl.Trainer) -> Any:
        """Return the loaders of a split, after the hooks of a user's module that make them. Raises ConfigError without any."""
        source, data = self._source, getattr(self.splits, split)
        if source is not None:
            source.trainer = trainer
            source.prepare_data()
            for stage in ("fit", "test") if split == "test" else ("fit",):
                source.setup(stage)
            name = f"{split}_dataloader"
            data = getattr(source, name)() if is_overridden(name, source) else None
        if data is None:
            raise ConfigError(f"data={self.config.data.name} has no {split} split.")
        if source is not None:
            return data
        # also training data is read in the order of its rows, without augmentation
        return self._open_loader(data, "val" if split == "train" else split)

    def _arguments(self, loader: Any, split: str) -> dict[str, Any]:
        """Return the Trainer's arguments for a loader, with the hooks of its data module."""
        source = self._source
        if not isinstance(source, pl.LightningDataModule):
            return {"dataloaders": loader}
        source.prepare_data = lambda: None  # type: ignore[method-assign]
        source.setup = lambda stage: None  # type: ignore[method-assign]
        # `validate` also measures training rows
        setattr(source, f"{'val' if split == 'train' else split}_dataloader", lambda: loader)
        return {"datamodule": source}

    def export(self, format: str, path: Path) -> None:
        """Write the model to a new file or folder.

        The format is "torch" or "safetensors" (weights as plain tensors), "peft" (a folder with the adapters only), "torch.export" (the
        graph) or "onnx". All but "peft" merge adapters into the weights.

        Raises ConfigError without a package, CheckpointError if the model can't be written in this format.
        """
        found = find_adapters(self.network)
        if format == "peft":
            if found is None:
                raise ConfigError(
                    "--export peft writes adapters, and this run has no model.lora; use --export safetensors."
                )
            found[1].save(path)
            return
        if found:
            self._merge(found[1], format)
        state = self.network.state_dict().items()
        weights = {plain_name(n): t.detach().cpu() for n, t in state if isinstance(t, Tensor)}
        if format == "safetensors":
            write_safetensors(weights, path, "--export safetensors")
        elif format == "torch":
            torch.save(weights, path)
            refuse_other_weights("--export torch", weights, torch.load(path, weights_only=True).__getitem__)
        else:
            self._export_graph(format, path)

    def _merge(self, adapters: Adapters, format: str) -> None:
        """Add the adapters to the weights, and compare the answers, unless no step calls the module."""
        try:
            example = self._example()
        except ConfigError:
            adapters.merge()
            return
        expected = self._answer(*example)
        adapters.merge()
        self._compare(format, expected, self._answer(*example)[0])

    def _answer(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
        """Return what the network answers in two calls."""
        network = self.network.cpu().eval()
        with torch.no_grad():
            return [as_numpy(network(*arguments, **named)) for _ in range(2)]

    def _compare(self, format: str, expected: list[Any], written: Any) -> None:
        half = any(parameter.dtype.itemsize < 4 for parameter in self.network.parameters())
        check_answers(format, expected, written, half)

    def _export_graph(self, format: str, path: Path) -> None:
        if format == "onnx" and (missing := [m for m in ("onnx", "onnxscript") if not find_spec(m)]):
            raise ConfigError(
                f"--export onnx needs {' and '.join(missing)}: pip install {' '.join(missing)}."
            )
        arguments, named = self._example()
        inputs, free = (*arguments, *named.values()), {0: torch.export.Dim.AUTO}
        leaves, is_free = (Tensor, int, float, str, type(None)), lambda v: isinstance(v, Tensor) and v.ndim
        sizes = apply_to_collection(inputs, leaves, lambda v: free if is_free(v) else None)
        network = self.network.cpu().eval()
        try:
            if format == "onnx":
                logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # packages that are not needed
                size = sum(t.nbytes for t in network.state_dict().values() if isinstance(t, Tensor))
                options: dict[str, Any] = {"dynamo": True, "verbose": False, "dynamic_shapes": sizes}
                options["external_data"] = size > LARGEST_ONNX
                torch.onnx.export(network, arguments, path, kwargs=named, **options)
            else:
                exported = torch.export.export(network, arguments, named, dynamic_shapes=sizes)
                torch.export.save(exported, path)
            expected = self._answer(arguments, named)
            written = _run_graph(format, path, arguments, named)
        except Exception as error:  # torch raises errors of many types for code that it can't trace
            message = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise CheckpointError(
                f"--export {format}: this model can't be written in this format: {message}; use --export torch."
            ) from error
        if written is not None:
            self._compare(format, expected, written)

    def _example(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the network for the first measured batch."""
        seen: list[Any] = []
        hook = self.network.register_forward_pre_hook(
            lambda module, args, named: seen.append((args, named)), with_kwargs=True
        )
        try:
            if splits := self.list_splits():
                self.measure(splits[0], batches=1)
            else:  # only the arguments of the network matter
                loader = self._open("train", self._make_trainer())
                with suppress(Exception):
                    self.module.training_step(next(iter(loader)), 0)
        finally:
            hook.remove()
        if not seen:
            raise ConfigError(
                "the steps of this module do not call it, so its arguments are not known; use --export torch."
            )
        # a clone is not a tensor of inference mode
        return apply_to_collection(seen[0], Tensor, lambda v: v.detach().cpu().clone())


def _run_graph(format: str, path: Path, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Return what an exported graph answers, or None without onnxruntime."""
    if format != "onnx":
        with torch.no_grad():
            return as_numpy(torch.export.load(path).module()(*arguments, **named))
    if not find_spec("onnxruntime"):
        print("onnx: not compared with the trained model: pip install onnxruntime.")
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    tensors: list[Tensor] = []
    apply_to_collection((arguments, named), Tensor, tensors.append)
    inputs = zip(session.get_inputs(), tensors, strict=True)
    return session.run(None, {one.name: tensor.numpy() for one, tensor in inputs})
