"""The search space: Hydra's sweeps (a,b or choice, range, interval, tag(log, interval)) as Optuna's distributions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep, Sweep
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from train_anywhere.errors import ConfigError

LOG = "log"
"""Tag of an interval that is sampled uniformly in the logarithm."""


@dataclass(frozen=True)
class Space:
    """The overrides of a search.

    Attributes:
        fixed: overrides with one value, equal in all trials.
        distributions: the distribution of each searched key.
        added: searched keys that Hydra may have to add (`++task.hidden`).
    """

    fixed: tuple[str, ...]
    distributions: Mapping[str, BaseDistribution]
    added: frozenset[str] = frozenset()

    def words(self, values: Mapping[str, Any]) -> list[str]:
        """Return the overrides of a trial."""
        return [*self.fixed, *(f"{'++' * (key in self.added)}{key}={value}" for key, value in values.items())]

    def extremes(self) -> list[list[str]]:
        """Return the overrides of two trials: one with all lowest (or first) values, one with all highest (or last)."""
        return [self.words({key: _extreme(d, at) for key, d in self.distributions.items()}) for at in (0, -1)]


def make_space(overrides: Sequence[Override]) -> Space:
    """Split overrides into fixed and searched ones; if a key occurs twice, the last one counts.

    Raises:
        ConfigError: lists all sweeps that can't be searched.
    """
    by_key = {o.get_key_element(): o for o in overrides}
    fixed = [f"{k}={o.get_value_element_as_str()}" for k, o in by_key.items() if not o.is_sweep_override()]
    distributions: dict[str, BaseDistribution] = {}
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
    added = frozenset(key.lstrip("+") for key in by_key if key.startswith("+"))
    return Space(tuple(fixed), distributions, added)


def make_distribution(override: Override) -> BaseDistribution:
    """Return the distribution of one override.

    Raises:
        ValueError: there is none; its message ends a sentence.
    """
    value = override.value()
    if unknown := set(getattr(value, "tags", ())) - ({LOG} if isinstance(value, IntervalSweep) else set()):
        raise ValueError(
            f"the tag {', '.join(sorted(unknown))} can't be used here: only an interval can have a tag, {LOG}"
        )
    if isinstance(value, ChoiceSweep) and any(isinstance(choice, Sweep) for choice in value.list):
        raise ValueError("one of its values is a sweep itself")
    if isinstance(value, IntervalSweep):
        return _interval(value)
    if isinstance(value, RangeSweep) and not value.shuffle:
        return _range(value)
    if not (choices := list(override.sweep_string_iterator())):
        raise ValueError("an empty sweep, it has no values")
    return CategoricalDistribution(choices)


def _interval(sweep: IntervalSweep) -> BaseDistribution:
    low, high, log = sweep.start, sweep.end, LOG in sweep.tags
    if low is None or high is None or not low < high:
        raise ValueError(
            f"an interval goes from a lower to a higher number, and this one from {low} to {high}"
        )
    if log and low <= 0:
        raise ValueError(f"a logarithmic interval starts above 0, and this one at {low}")
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(float(low), float(high), log=log)


def _range(sweep: RangeSweep) -> BaseDistribution:
    """Return the distribution of a range, which excludes its end as in Hydra."""
    start, step = sweep.start or 0, sweep.step
    if sweep.stop is None or step <= 0 or not start < sweep.stop:
        raise ValueError("an empty range, it has no values")
    count = int((sweep.stop - start) / step - 1e-9)
    last = start + count * step
    if all(isinstance(n, int) for n in (start, sweep.stop, step)):
        return IntDistribution(int(start), int(last), step=int(step))
    return FloatDistribution(float(start), float(last), step=float(step))


def _extreme(distribution: BaseDistribution, at: int) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[at]
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    return (distribution.low, distribution.high)[at]
