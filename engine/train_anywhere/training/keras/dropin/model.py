"""Train a user's `keras.Model` that works with `fit`, unchanged."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from train_anywhere.config.schema import Config, Trainer
from train_anywhere.data.dataset import Splits
from train_anywhere.errors import ConfigError
from train_anywhere.training.early_stopping import monitored_value
from train_anywhere.training.keras.batches import DropInLoader
from train_anywhere.training.keras.checkpoint import disable_graph_optimizer
from train_anywhere.training.keras.dropin.gradients import (
    AveragingApply,
    add_adapters,
    average_in_apply,
    find_batch_norms,
    synchronize_batch_norms,
)
from train_anywhere.training.keras.dropin.metric_sums import Metrics, StepLogs
from train_anywhere.training.keras.dropin.variables import build_variables, trace_step
from train_anywhere.training.keras.module import Module, NamedVariables, float_statistics
from train_anywhere.training.keras.native import POLICIES, dtype_policy
from train_anywhere.training.keras.optim import ignored_rate_notes, make_optimizer
from train_anywhere.training.keras.strategies.base import Strategy
from train_anywhere.training.plan import Plan, make_plan, refuse_unmatched

NOT_COMPILED = "trainer.compile=true compiles the network of a task; this model has its own steps, and trains without XLA."


class DropIn(Module):
    """A user's model with its own steps, or with those of Keras for its compiled loss.

    As in Keras, metrics cover the epoch so far, and have the names that the steps return.

    Args:
        model: the model; its variables and those of its metrics and optimizers exist.
        extra: variables that the steps use and the model does not track.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: Strategy,
        extra: NamedVariables,
        applies: Sequence[AveragingApply],
        spec: Any,
        **options: Any,
    ) -> None:
        super().__init__(model, strategy, **options)
        self.extra, self.applies, self.spec = extra, applies, spec
        self.metrics = Metrics(model, strategy)
        self.step_logs = StepLogs(self.metrics)
        self.trace()

    def trace(self) -> None:
        """Create the functions that train and test."""
        model = self.model
        eager, keep = bool(model.run_eagerly) and self.strategy.replicas == 1, self.step_logs.keep
        train, test = self.step_logs.wrap(model.train_step), self.step_logs.wrap(model.test_step)
        run_train = (lambda i: train(next(i))) if eager else self.make_step_function(train)
        run_test = (lambda i: test(next(i))) if eager else self.make_step_function(test)
        last = tf.function(lambda data: self.distribution.run(test, args=(data,)), autograph=False)
        self.train_function = lambda iterator, count: keep(run_train(iterator))
        self.test_function = lambda iterator: keep(run_test(iterator))
        self.test_last = lambda data: keep((test if eager else last)(data))

    def optimized_variables(self) -> list[tuple[keras.optimizers.Optimizer, list[keras.Variable]]]:
        """Return the optimizers and variables of a step, which is traced but not run."""
        for apply in self.applies:
            apply.variables = []
        trace_step(self.model.train_step, self.spec, self.applies)
        return [(apply.optimizer, apply.variables) for apply in self.applies if apply.variables]

    def reset_metrics(self) -> None:
        """Reset the model's metrics."""
        self.model.reset_metrics()
        self.step_logs.reset()

    def take(self) -> list[float]:
        """Return the states of this process's metrics, then the values of the last step."""
        return [*self.metrics.take(), *self.step_logs.take()]

    def report(self, split: str, sums: list[float]) -> dict[str, float]:
        """Return what Keras reports: the values of the last step, or its metrics if it returns all.

        Several replicas also report each metric that is returned under its own name from the states of all.
        """
        end = len(sums) - 2 * len(self.step_logs.names)
        values, results = self.step_logs.means(sums[end:]), self.metrics.results(sums[:end])
        if values.keys() == results.keys() or not values:
            values = results
        elif self.step_logs.several:
            values |= {name: v for name, v in results.items() if name in self.step_logs.last[2]}
        return {f"{split}/{name}": value for name, value in values.items()}

    def report_batch(self, split: str, metrics: Mapping[str, float] | None) -> Mapping[str, float]:
        """Return what the last step has returned, over the replicas of this process."""
        values = self.step_logs.means(self.step_logs.take())
        return {f"{split}/{name}": value for name, value in values.items()}

    def weights(self) -> NamedVariables:
        """Return the variables of the model, and others that its steps use."""
        return {**super().weights(), **self.extra}

    def metric_state(self) -> Mapping[str, Any]:
        """Return the states of the metrics over all ranks."""
        arrays = self.metrics.arrays(self.strategy.sum(self.metrics.take()))
        return {f"state/{n}": array for n, array in enumerate(arrays)}

    def restore_metric_state(self, arrays: Mapping[str, Any]) -> None:
        """Continue from these states on the rank that reads the checkpoint. Others start at zero."""
        self.metrics.restore([array for key, array in arrays.items() if key.startswith("state/")])

    def moving_statistics(self) -> list[keras.Variable]:
        """Return those of batch normalization. Other variables must be equal on all ranks."""
        return float_statistics(find_batch_norms(self.model))


def open_dropin(
    config: Config, strategy: Strategy, splits: Splits, model: keras.Model
) -> tuple[DropIn, DropInLoader, Plan]:
    """Return the module, batches and plan of a user's model.

    Raises:
        ConfigError, DataError: model, data and configuration do not fit together.
    """
    target = config.task.target["keras"]
    refuse_accumulation(config.trainer, target)
    disable_graph_optimizer()
    loader = DropInLoader(config, strategy, splits)
    train, val, test = (loader.count_batches(split) for split in ("train", "val", "test"))
    plan = make_plan(config, train, val, test, strategy.replicas)
    with strategy.scope(), dtype_policy(POLICIES[config.trainer.precision]):
        ours, base = None, add_adapters(model, config, whole=True)
        if not model.compiled or model.optimizer is None:
            ours = make_optimizer(config, plan, strategy.replicas)
            compile_model(model, ours, target)
        refuse_sum_losses(model, strategy)
        applies = {id(o): average_in_apply(o, strategy, n) for n, o in enumerate(find_optimizers(model))}
        evaluated = "val" if plan.val_batches else "test" if plan.test_batches else None
        extra, notes, names = build_variables(
            model,
            target,
            config.optimizer.no_decay,
            list(applies.values()),
            spec := loader.spec("train"),
            loader.spec(evaluated) if evaluated else None,
        )
        if config.trainer.sync_batchnorm:
            synchronize_batch_norms(model, strategy)
        no_decay, optimizers = config.optimizer.no_decay, find_optimizers(model)
        options = {"base": base, "optimizers": optimizers, "no_decay": no_decay}
        module = DropIn(model, strategy, extra, list(applies.values()), spec, **options)
    module.notes.extend(loader.notes + notes + ([NOT_COMPILED] if config.trainer.compile else []))
    if ours is not None:
        refuse_unmatched(config.optimizer.groups, [v.path for v in model.weights])
    used = [o for o in module.optimizers if applies[id(o)].variables]
    check_optimizers(config, module, ours, used)
    if not config.callbacks:
        check_monitors(
            config,
            plan,
            [f"{s}/{n}" for s, known in zip(("train", "val"), names, strict=False) for n in known],
        )
    return module, loader, plan


def check_monitors(config: Config, plan: Plan, names: Sequence[str]) -> None:
    """Raise ConfigError if a monitor is not among the names of what the steps return."""
    known, stopping = dict.fromkeys(names, 0.0), config.trainer.early_stopping
    for key, monitor in (
        ("checkpoint.monitor", config.checkpoint.monitor),
        ("trainer.early_stopping.monitor", stopping.monitor if stopping.patience is not None else None),
    ):
        measured = plan.val_batches or (monitor or "").startswith("train/")
        if monitor and measured and any(name.startswith(monitor.partition("/")[0]) for name in names):
            monitored_value(known, monitor, key)


def refuse_accumulation(trainer: Trainer, target: str) -> None:
    """Raise ConfigError if gradients are to be accumulated: the model's step is a whole one."""
    count = trainer.accumulate_grad_batches
    if count > 1 and not trainer.fast_dev_run:
        raise ConfigError(
            f"trainer.accumulate_grad_batches={count}, but task._target_={target} makes an optimizer step for each batch; use a larger "
            "data.batch_size, or gradient_accumulation_steps of an optimizer that the model brings."
        )


def refuse_sum_losses(model: keras.Model, strategy: Strategy) -> None:
    """Raise ConfigError for a loss that the mean over the replicas would change."""
    losses = tf.nest.flatten(model.loss) if model.compiled and model.loss else []
    used = {str(getattr(loss, "reduction", None)) for loss in losses}
    found = used & {"sum", "mean_with_sample_weight"}
    if strategy.replicas > 1 and found:
        raise ConfigError(
            f"the model is compiled with a loss of reduction='{min(found)}', and the gradients of {strategy.replicas} ranks or devices are "
            "averaged, which would change the loss; use reduction='sum_over_batch_size', or trainer.devices=1."
        )
    steps = next(
        (n for o in find_optimizers(model) if (n := getattr(o, "gradient_accumulation_steps", None))), None
    )
    if steps and strategy.replicas > 1 and tf.distribute.has_strategy():
        raise ConfigError(
            f"an optimizer has gradient_accumulation_steps={steps}, which Keras can't use with tf.distribute on {strategy.replicas} "
            "devices; use a larger data.batch_size, strategy=horovod, or trainer.devices=1."
        )


def compile_model(model: keras.Model, optimizer: keras.optimizers.Optimizer, target: str) -> None:
    """Compile the model with this run's optimizer. Raises ConfigError if it can't be."""
    if model.compiled:
        model.optimizer = optimizer
        return
    try:
        model.compile(optimizer=optimizer, jit_compile=False)
    except TypeError as error:
        raise ConfigError(
            f"task._target_={target} has its own compile(), which needs more arguments than optimizer ({error}); call it in the "
            "constructor, which has the arguments."
        ) from error


def check_optimizers(
    config: Config, module: DropIn, ours: keras.optimizers.Optimizer | None, used: list[Any]
) -> None:
    """Set the reader of the learning rate, and add notes. Raises ConfigError for useless keys."""
    target = config.task.target["keras"]
    if not used and module.strategy.replicas > 1:
        raise ConfigError(
            f"the train_step of task._target_={target} calls no optimizer, so the gradients of {module.strategy.replicas} ranks or devices "
            "would not be averaged; use optimizer.apply in it, or trainer.devices=1."
        )
    if ours is not None and any(o is ours for o in used):
        module.read_rate_of(ours)
        module.notes.extend(ignored_rate_notes(config.optimizer, config.schedule))
        return
    if config.trainer.gradient_clip_val is not None:
        raise ConfigError(
            f"trainer.gradient_clip_val={config.trainer.gradient_clip_val} would have no effect: task._target_={target} brings its own "
            "optimizer; give that one global_clipnorm."
        )
    if used:
        module.read_rate_of(used[0])
        module.notes.append("the model brings its own optimizer: optimizer and schedule have no effect.")


def find_optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Return all optimizers among the attributes of the model and of models in it."""
    found: dict[int, keras.optimizers.Optimizer] = {}
    seen: set[int] = set()

    def search(value: Any) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, keras.optimizers.Optimizer):
            found[id(value)] = value
        elif isinstance(value, keras.Model):
            for name, attribute in vars(value).items():
                if not name.startswith("_"):
                    search(attribute)
        elif isinstance(value, dict):
            for inner in value.values():
                search(inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                search(inner)

    search(model)
    if isinstance(model.optimizer, keras.optimizers.Optimizer):
        search(model.optimizer)
    return list(found.values())
