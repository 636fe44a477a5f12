"""The search space: Hydra's sweeps as Optuna's distributions, in their JSON form, without importing Optuna."""

from collections.abc import Callable, Sequence
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep, Sweep

from train_anywhere.errors import ConfigError, listed
from train_anywhere.runs.study import Space

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
    if unknown := set(getattr(value, "tags", ())) - ({"log"} if isinstance(value, IntervalSweep) else set()):
        raise ValueError(
            f"the tag {listed(sorted(unknown))} can't be used here: only an interval can have a tag, log"
        )
    if isinstance(value, ChoiceSweep) and any(isinstance(choice, Sweep) for choice in value.list):
        raise ValueError("one of its values is a sweep itself")
    low = high = step = None
    if isinstance(value, IntervalSweep):
        low, high = value.start, value.end
        if low is None or high is None or not low < high:
            raise ValueError(f"an interval goes from a lower to a higher number, not from {low} to {high}")
        if "log" in value.tags and low <= 0:
            raise ValueError(f"a logarithmic interval starts above 0, and this one at {low}")
    elif isinstance(value, RangeSweep) and not value.shuffle:
        low, step = value.start or 0, value.step
        if value.stop is None or step <= 0 or not low < value.stop:
            raise ValueError("an empty range, it has no values")
        high = low + int((value.stop - low) / step - 1e-9) * step  # Hydra excludes the end
    if low is not None and high is not None:
        whole = all(isinstance(number, int) for number in (low, high, step or 1))
        form: Callable[[float], float] = int if whole else float
        ends = {"low": form(low), "high": form(high), "step": form(step) if step else 1 if whole else None}
        attributes = {"log": "log" in getattr(value, "tags", ()), **ends}
        return {"name": "IntDistribution" if whole else "FloatDistribution", "attributes": attributes}
    if not (choices := list(override.sweep_string_iterator())):
        raise ValueError("an empty sweep, it has no values")
    return {"name": "CategoricalDistribution", "attributes": {"choices": choices}}
