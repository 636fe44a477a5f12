"""The drop-in door: a `keras.Model` that works with `fit`, unchanged, with its own steps, losses, metrics and optimizers."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.config.schema import Config
from train_anywhere.data.dataset import Splits
from train_anywhere.errors import ConfigError
from train_anywhere.training.keras.batches import DropInLoader
from train_anywhere.training.keras.checkpoint.random_state import leave_graphs_as_written
from train_anywhere.training.keras.dropin.building import build, look
from train_anywhere.training.keras.dropin.counting import Logged, Metrics, counted_step
from train_anywhere.training.keras.dropin.gradients import AveragedApply, average_inside
from train_anywhere.training.keras.dropin.norm_layers import batch_norms, over_all_replicas
from train_anywhere.training.keras.module import Module, Saved, float_statistics
from train_anywhere.training.keras.native import POLICIES, dtype_policy
from train_anywhere.training.keras.optim import make_optimizer, rate_of, unscheduled
from train_anywhere.training.keras.strategies.base import Strategy
from train_anywhere.training.plan import Plan, make_plan

UNCOMPILED = "trainer.compile=true compiles the network of a task; this model makes its own steps, and trains without XLA."


class DropIn(Module):
    """A model with steps of its own, or compiled ones.

    Metrics are those of an epoch so far, as Keras has them, under the names that the steps return.

    Args:
        model: its variables exist, and those of its metrics and optimizers.
        applies: of its optimizers.
        spec: types and shapes of a replica's batch.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: Strategy,
        extra: Saved,
        applies: Sequence[AveragedApply],
        spec: Any,
    ) -> None:
        super().__init__(model, strategy)
        self.extra, self.applies, self.spec = extra, applies, spec
        self.metrics = Metrics(model, strategy)
        self.logged = Logged()
        self.trace()

    def trace(self) -> None:
        """Make the functions that train and test."""
        model = self.model
        eager = bool(model.run_eagerly) and self.strategy.replicas == 1
        train, test = counted_step(model.train_step), counted_step(model.test_step)
        self._train = (lambda i: train(next(i))) if eager else self.function(train)
        self._test = (lambda i: test(next(i))) if eager else self.function(test)
        self.train_function = lambda iterator, count: self._counted(self._train, iterator)
        self.test_function = lambda iterator: self._counted(self._test, iterator)
        last = (
            test if eager else tf.function(lambda d: self.distribution.run(test, args=(d,)), autograph=False)
        )
        self.test_last = lambda data: self._counted(last, data)

    def applied(self) -> list[tuple[keras.optimizers.Optimizer, list[keras.Variable]]]:
        """Look at a step that is traced and not run."""
        for apply in self.applies:
            apply.seen = []
        look(self.model.train_step, self.spec, self.applies)
        return [(apply.optimizer, apply.seen) for apply in self.applies if apply.seen]

    def begin(self, part: str) -> None:
        """Metrics count from here on."""
        self.model.reset_metrics()
        self.logged.reset()

    def take(self) -> list[float]:
        """The states of the metrics of this process, then the sums of what steps returned."""
        return [*self.metrics.take(), *self.logged.take()]

    def report(self, part: str, sums: list[float]) -> dict[str, float]:
        """All that the steps return; all metrics, if they return nothing."""
        split = len(sums) - 2 * len(self.logged.totals)
        found = self.logged.means(sums[split:]) | {
            k: v for k, v in self.metrics.results(sums[:split]).items() if self._wanted(k)
        }
        return {f"{part}/{name}": value for name, value in found.items()}

    def _wanted(self, name: str) -> bool:
        names = self.logged.names
        return not names or name in names or name.rpartition("_")[0] in names

    def weights(self) -> Saved:
        """Those of the model, and what else its steps read or write."""
        return {**super().weights(), **self.extra}

    def counted(self) -> Mapping[str, Any]:
        """States of the metrics, and sums, over all ranks."""
        totals = self.strategy.sum(self.take())
        split = len(totals) - 2 * len(self.logged.totals)
        states = {f"state/{n}": a for n, a in enumerate(self.metrics.arrays(totals[:split]))}
        pairs = {
            f"logged/{name}": np.array(totals[split + 2 * n : split + 2 * n + 2])
            for n, name in enumerate(sorted(self.logged.totals))
        }
        return states | pairs

    def restore_counted(self, arrays: Mapping[str, Any]) -> None:
        """On the rank that reads the checkpoint; the others begin at zero."""
        self.metrics.restore([arrays[f"state/{n}"] for n in range(len(self.metrics.variables))])
        for key, pair in arrays.items():
            if key.startswith("logged/"):
                self.logged.totals[key.removeprefix("logged/")] = [float(v) for v in pair]

    def moving_statistics(self) -> list[keras.Variable]:
        """Those of batch normalisation; what else a model changes is not averaged, but must be the same everywhere."""
        return float_statistics(batch_norms(self.model))

    def _counted(self, run: Any, batches: Any) -> None:
        logs, rows = run(batches)
        local = self.distribution.experimental_local_results
        counts = local(rows)
        values = {name: local(value) for name, value in logs.items()}
        self.logged.add(({k: v[n] for k, v in values.items()}, rows) for n, rows in enumerate(counts))


def open_dropin(
    config: Config, strategy: Strategy, splits: Splits, model: keras.Model
) -> tuple[DropIn, DropInLoader, Plan]:
    """All variables are created, and the same on all ranks.

    Raises:
        ConfigError, DataError: model, data and configuration do not fit together.
    """
    refuse_accumulation(config)
    leave_graphs_as_written()
    loader = DropInLoader(config, strategy, splits)
    train, val, test = (loader.batches(part) for part in ("train", "val", "test"))
    plan = make_plan(config, train, val, test, strategy.replicas)
    with strategy.scope(), dtype_policy(POLICIES[config.trainer.precision]):
        ours = None
        if not model.compiled or model.optimizer is None:
            ours = make_optimizer(config, plan, strategy.replicas)
            compile_with(config, model, ours)
        refuse_sums(model, strategy)
        applies = {id(o): average_inside(o, strategy, n) for n, o in enumerate(optimizers_of(model))}
        evaluated = next(
            (part for part, count in (("val", plan.val_batches), ("test", plan.test_batches)) if count), None
        )
        extra, notes = build(
            config,
            model,
            strategy,
            list(applies.values()),
            spec := loader.spec("train"),
            loader.spec(evaluated) if evaluated else None,
        )
        if config.trainer.sync_batchnorm:
            over_all_replicas(model, strategy)
        module = DropIn(model, strategy, extra, list(applies.values()), spec)
    module.optimizers, module.no_decay = optimizers_of(model), config.optimizer.no_decay
    module.notes = loader.notes + notes + ([UNCOMPILED] if config.trainer.compile else [])
    used = [o for o in module.optimizers if applies[id(o)].seen]
    judge_optimizers(config, plan, module, ours, used)
    return module, loader, plan


def refuse_accumulation(config: Config) -> None:
    """Raise ConfigError: a step of the model's own is an optimizer step."""
    count = config.trainer.accumulate_grad_batches
    if count > 1 and not config.trainer.fast_dev_run:
        raise ConfigError(
            f"trainer.accumulate_grad_batches={count}, but task._target_={config.task.target['keras']} makes an optimizer step for each "
            "batch by itself; use a larger data.batch_size, or gradient_accumulation_steps of an optimizer that the model brings."
        )


def refuse_sums(model: keras.Model, strategy: Strategy) -> None:
    """Raise ConfigError for a compiled loss that is a sum over rows: the average over replicas would not be that of all rows."""
    losses = tf.nest.flatten(model.loss) if model.compiled and model.loss else []
    if strategy.replicas > 1 and any(getattr(loss, "reduction", None) == "sum" for loss in losses):
        raise ConfigError(
            f"the model is compiled with a loss of reduction='sum', and the gradients of {strategy.replicas} ranks or devices are "
            "averaged: they would be those of another loss; use reduction='sum_over_batch_size', or trainer.devices=1."
        )


def compile_with(config: Config, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
    """Give the model this run's optimizer. Raises ConfigError: its `compile` needs more than that."""
    if model.compiled:
        model.optimizer = optimizer
        return
    try:
        model.compile(optimizer=optimizer, jit_compile=False)
    except TypeError as error:
        raise ConfigError(
            f"task._target_={config.task.target['keras']} has a compile() of its own that does not take optimizer alone ({error}); call it "
            "in the constructor, where the model has its arguments."
        ) from error


def judge_optimizers(
    config: Config, plan: Plan, module: DropIn, ours: keras.optimizers.Optimizer | None, used: list[Any]
) -> None:
    """Say which optimizer trains, and where its learning rate is read.

    Raises:
        ConfigError: none does and there are several replicas, or settings of the configuration would have no effect.
    """
    target = config.task.target["keras"]
    if not used and module.strategy.replicas > 1:
        raise ConfigError(
            f"the train_step of task._target_={target} calls no optimizer, so the gradients of {module.strategy.replicas} ranks or devices "
            "would not be averaged; use optimizer.apply in it, or trainer.devices=1."
        )
    if ours is not None and any(o is ours for o in used):
        module.rate = rate_of(ours, config, plan, module.strategy.replicas)
        module.notes += unscheduled(config)
        return
    if config.trainer.gradient_clip_val is not None:
        raise ConfigError(
            f"trainer.gradient_clip_val={config.trainer.gradient_clip_val} would have no effect: task._target_={target} brings its own "
            "optimizer; give that one global_clipnorm."
        )
    if used:
        module.rate = rate_of(used[0], config, plan, module.strategy.replicas)
        module.notes.append(
            "the model brings its own optimizer: what optimizer and schedule say has no effect."
        )


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """All that the model or a model in it has as an attribute, in a list or in a dict."""
    found: dict[int, keras.optimizers.Optimizer] = {}
    seen: set[int] = set()

    def look(value: Any) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, keras.optimizers.Optimizer):
            found[id(value)] = value
        elif isinstance(value, keras.Model):
            for name, attribute in vars(value).items():
                if not name.startswith("_"):
                    look(attribute)
        elif isinstance(value, dict):
            for inner in value.values():
                look(inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                look(inner)

    look(model)
    if isinstance(model.optimizer, keras.optimizers.Optimizer):
        look(model.optimizer)
    return list(found.values())
