"""The search space: Hydra's sweeps as Optuna's distributions, in their JSON form, without importing Optuna."""

from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep, Sweep

from train_anywhere.errors import ConfigError, listed
from train_anywhere.runs.study import Space

LOG = "log"
"""Tag of an interval that is sampled uniformly in the logarithm."""

Distribution = dict[str, Any]


def make_space(overrides: Sequence[Override]) -> Space:
    """Split overrides into fixed and searched ones. Raises ConfigError with all problems."""
    by_key = {o.get_key_element(): o for o in overrides}
    fixed = [f"{k}={o.get_value_element_as_str()}" for k, o in by_key.items() if not o.is_sweep_override()]
    distributions: dict[str, Distribution] = {}
    problems = []
    for key, override in by_key.items():
        if override.is_sweep_override():
            try:
                distributions[key.lstrip("+")] = make_distribution(override)
            except ValueError as error:
                problems.append(f"{str(override.input_line).lstrip('+')}: {error}.")
    if not by_key or not (distributions or problems):
        problems.append(
            "hydra/sweeper=optuna has nothing to search: give a key several values, such as 'optimizer.lr=tag(log,interval(1e-4,1e-1))' "
            "or model=cnn,mlp."
        )
    if problems:
        raise ConfigError(*problems)
    return Space(fixed, distributions, [key.lstrip("+") for key in by_key if key.startswith("+")])


def make_distribution(override: Override) -> Distribution:
    """Return the distribution of one override. Raises ValueError if there is none."""
    value = override.value()
    if unknown := set(getattr(value, "tags", ())) - ({LOG} if isinstance(value, IntervalSweep) else set()):
        raise ValueError(
            f"the tag {listed(sorted(unknown))} can't be used here: only an interval can have a tag, {LOG}"
        )
    if isinstance(value, ChoiceSweep) and any(isinstance(choice, Sweep) for choice in value.list):
        raise ValueError("one of its values is a sweep itself")
    if isinstance(value, IntervalSweep):
        return _interval(value)
    if isinstance(value, RangeSweep) and not value.shuffle:
        return _range(value)
    if not (choices := list(override.sweep_string_iterator())):
        raise ValueError("an empty sweep, it has no values")
    return {"name": "CategoricalDistribution", "attributes": {"choices": choices}}


def _interval(sweep: IntervalSweep) -> Distribution:
    low, high, log = sweep.start, sweep.end, LOG in sweep.tags
    if low is None or high is None or not low < high:
        raise ValueError(
            f"an interval goes from a lower to a higher number, and this one from {low} to {high}"
        )
    if log and low <= 0:
        raise ValueError(f"a logarithmic interval starts above 0, and this one at {low}")
    return _numbers(low, high, None, log)


def _range(sweep: RangeSweep) -> Distribution:
    """Return the distribution of a range, which excludes its end as in Hydra."""
    start, step = sweep.start or 0, sweep.step
    if sweep.stop is None or step <= 0 or not start < sweep.stop:
        raise ValueError("an empty range, it has no values")
    last = start + int((sweep.stop - start) / step - 1e-9) * step
    return _numbers(start, last, step, False)


def _numbers(low: float, high: float, step: float | None, log: bool) -> Distribution:
    if all(isinstance(number, int) for number in (low, high, step or 1)):
        return {
            "name": "IntDistribution",
            "attributes": {"log": log, "step": step or 1, "low": low, "high": high},
        }
    attributes = {"log": log, "step": step and float(step), "low": float(low), "high": float(high)}
    return {"name": "FloatDistribution", "attributes": attributes}
