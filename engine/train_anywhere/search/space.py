"""What is searched: from Hydra's sweeps (a,b or choice, range, interval, tag(log, interval)) to Optuna's distributions."""

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
"""Tag of an interval whose orders of magnitude are equally probable."""


@dataclass(frozen=True)
class Space:
    """The overrides of a search.

    Attributes:
        fixed: those with one value, the same in each trial.
        drawn: what the others are drawn from, by key.
        added: of these keys, those that Hydra may have to add (`++task.hidden`).
    """

    fixed: tuple[str, ...]
    drawn: Mapping[str, BaseDistribution]
    added: frozenset[str] = frozenset()

    def words(self, values: Mapping[str, Any]) -> list[str]:
        """The overrides of a trial."""
        return [*self.fixed, *(f"{'++' * (key in self.added)}{key}={value}" for key, value in values.items())]

    def ends(self) -> list[list[str]]:
        """The overrides of two trials: all lowest (or first) values, all highest."""
        return [self.words({key: _end(d, at) for key, d in self.drawn.items()}) for at in (0, -1)]


def space_of(overrides: Sequence[Override]) -> Space:
    """Split overrides into fixed and searched ones; of a key that is given twice the last one counts.

    Raises:
        ConfigError: with all that can't be searched.
    """
    by_key = {o.get_key_element(): o for o in overrides}
    fixed = [f"{k}={o.get_value_element_as_str()}" for k, o in by_key.items() if not o.is_sweep_override()]
    drawn: dict[str, BaseDistribution] = {}
    problems = []
    for key, override in by_key.items():
        if override.is_sweep_override():
            try:
                drawn[key.lstrip("+")] = distribution(override)
            except ValueError as error:
                problems.append(f"{str(override.input_line).lstrip('+')}: {error}.")
    if not by_key or not (drawn or problems):
        problems.append(
            "hydra/sweeper=optuna has nothing to search: give a key several values, such as 'optimizer.lr=tag(log,interval(1e-4,1e-1))' "
            "or model=cnn,mlp."
        )
    if problems:
        raise ConfigError(*problems)
    added = frozenset(key.lstrip("+") for key in by_key if key.startswith("+"))
    return Space(tuple(fixed), drawn, added)


def distribution(override: Override) -> BaseDistribution:
    """What the values of one override are drawn from.

    Raises:
        ValueError: there are none; why, as the end of a sentence.
    """
    value = override.value()
    if unknown := set(getattr(value, "tags", ())) - ({LOG} if isinstance(value, IntervalSweep) else set()):
        raise ValueError(
            f"{', '.join(sorted(unknown))} means nothing here: an interval alone can have a tag, {LOG}"
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
            f"an interval goes from a lower number to a higher one, and this from {low} to {high}"
        )
    if log and low <= 0:
        raise ValueError(f"a logarithmic interval begins above 0, and this at {low}")
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(float(low), float(high), log=log)


def _range(sweep: RangeSweep) -> BaseDistribution:
    """As Hydra counts: without its end."""
    start, step = sweep.start or 0, sweep.step
    if sweep.stop is None or step <= 0 or not start < sweep.stop:
        raise ValueError("an empty range, it has no values")
    count = int((sweep.stop - start) / step - 1e-9)
    last = start + count * step
    if all(isinstance(n, int) for n in (start, sweep.stop, step)):
        return IntDistribution(int(start), int(last), step=int(step))
    return FloatDistribution(float(start), float(last), step=float(step))


def _end(distribution: BaseDistribution, at: int) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[at]
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    return (distribution.low, distribution.high)[at]
