"""The search space, Hydra's sweeps as Optuna's distributions, and the trials of a study.

The trials are in a journal in the study's folder, so that an interrupted search can be resumed.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep, Sweep
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from train_anywhere.errors import ConfigError, listed
from train_anywhere.files.atomic import dumps, read_json, write_atomic
from train_anywhere.files.removal import OwnedFolder, make_owned
from train_anywhere.runs.folder import new_run_id

LOG = "log"
"""Tag of an interval that is sampled uniformly in the logarithm."""

COMMAND = "study.json"
JOURNAL = "study.log"

SAMPLERS: dict[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    # constant_liar: values near those of trials that still run are not proposed again
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed, constant_liar=True),
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
}
"""Functions that make a sampler from a seed, by name."""

PRUNERS = {"none": optuna.pruners.NopPruner, "median": optuna.pruners.MedianPruner}

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution


@dataclass(frozen=True)
class Space:
    """The overrides of a search.

    Attributes:
        fixed: overrides with one value, equal in all trials.
        distributions: the distribution of each searched key.
        added: searched keys that Hydra may have to add (`++task.hidden`).
    """

    fixed: tuple[str, ...]
    distributions: Mapping[str, Distribution]
    added: frozenset[str] = frozenset()

    def words(self, values: Mapping[str, Any]) -> list[str]:
        """Return the overrides of a trial."""
        return [*self.fixed, *(f"{'++' * (key in self.added)}{key}={value}" for key, value in values.items())]

    def extremes(self) -> list[list[str]]:
        """Return the overrides of the trials with all lowest and all highest values."""
        ends = {
            key: d.choices if isinstance(d, CategoricalDistribution) else (d.low, d.high)
            for key, d in self.distributions.items()
        }
        return [self.words({key: values[at] for key, values in ends.items()}) for at in (0, -1)]


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
    added = frozenset(key.lstrip("+") for key in by_key if key.startswith("+"))
    return Space(tuple(fixed), distributions, added)


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
    return CategoricalDistribution(choices)


def _interval(sweep: IntervalSweep) -> Distribution:
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


def _range(sweep: RangeSweep) -> Distribution:
    """Return the distribution of a range, which excludes its end as in Hydra."""
    start, step = sweep.start or 0, sweep.step
    if sweep.stop is None or step <= 0 or not start < sweep.stop:
        raise ValueError("an empty range, it has no values")
    last = start + int((sweep.stop - start) / step - 1e-9) * step
    if all(isinstance(n, int) for n in (start, sweep.stop, step)):
        return IntDistribution(int(start), int(last), step=int(step))
    return FloatDistribution(float(start), float(last), step=float(step))


@dataclass(frozen=True)
class Settings:
    """The settings of a study.

    Attributes:
        at_once: number of trials that run at the same time.
        sampler, pruner: keys of `SAMPLERS` and `PRUNERS`.
        metric, mode: the metric by which trials are compared, and whether its least or greatest value is best.
    """

    trials: int
    at_once: int
    sampler: str
    pruner: str
    seed: int
    metric: str
    mode: str


class Study:
    """A folder with a journal of trials, for one process at a time.

    Attributes:
        folder: folder of the study; the run folder of trial n is `<folder>-<n>`.
    """

    def __init__(self, folder: Path, settings: Settings, space: Space) -> None:
        self.folder, self.space, self.settings = folder, space, settings
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna.create_study(
            storage=_storage(folder),
            study_name=folder.name,
            pruner=PRUNERS[settings.pruner](),
            direction="minimize" if settings.mode == "min" else "maximize",
            load_if_exists=True,
        )
        # another seed after each start: the same seed would propose the same values again
        self._optuna.sampler = SAMPLERS[settings.sampler](settings.seed + len(self.trials))

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials so far, by number."""
        return self._optuna.get_trials(deepcopy=False)

    @property
    def remaining(self) -> int:
        """Number of trials that have not been started."""
        return self.settings.trials - len(self.trials)

    def ask(self) -> Trial:
        """Return a new trial."""
        return self._optuna.ask(dict(self.space.distributions))

    def tell(self, number: int, value: float | None, pruned: bool = False) -> None:
        """Record the end of a trial. Without a value it has failed or was pruned."""
        if value is None or value != value:  # nan
            self._optuna.tell(number, state=TrialState.PRUNED if pruned else TrialState.FAIL)
        else:
            self._optuna.tell(number, value)

    def run_folder(self, number: int) -> Path:
        """Return the run folder of a trial."""
        return self.folder.with_name(f"{self.folder.name}-{number}")


def _storage(folder: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(folder / JOURNAL)))


def owned_folder(folder: Path) -> OwnedFolder:
    """Return the folder of a study as one that this project may remove."""
    return OwnedFolder(folder.parent, (folder.name,), f"study {folder.name}")


def make_folder(folder: Path, arguments: Sequence[str], trials: int) -> None:
    """Make the folder of a study, unless it exists, with its command.

    Raises:
        ConfigError: the folder is of another command, or can't be made.
    """
    if (folder / COMMAND).is_file():
        if (other := read_json(folder / COMMAND).get("arguments")) != list(arguments):
            typed = " ".join(map(str, other)) if isinstance(other, list) else "its study.json is damaged"
            raise ConfigError(
                f"hydra.sweeper.study_name={folder.name} is a study of another command: {typed}; use that command, or choose another name."
            )
    else:
        try:
            make_owned(owned_folder(folder))
        except OSError as error:
            raise ConfigError(
                f"the study's folder {folder} can't be made ({error.strerror or error}); use another hydra.sweeper.study_name."
            ) from error
    write_atomic(folder / COMMAND, dumps({"arguments": list(arguments), "trials": trials}))


def find_folder(results: Path, name: str, arguments: Sequence[str], study_name: str | None) -> Path:
    """Return the named folder, the newest unfinished one of the command, or a new one."""
    if study_name:
        return results / name / study_name
    for path in sorted((results / name).glob(f"*/{COMMAND}"), reverse=True):
        if read_json(path).get("arguments") == list(arguments) and not _is_over(path.parent):
            return path.parent
    return results / name / new_run_id()


def _is_over(folder: Path) -> bool:
    with suppress(Exception):  # a study with an unreadable journal is not resumed
        trials = optuna.load_study(study_name=None, storage=_storage(folder)).get_trials(deepcopy=False)
        return sum(t.state.is_finished() for t in trials) >= read_json(folder / COMMAND)["trials"]
    return True
