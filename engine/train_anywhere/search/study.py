"""The trials of a search, in a journal in the study's folder, so that an interrupted search can be resumed."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from train_anywhere.errors import ConfigError
from train_anywhere.files.atomic import read_text, write_atomic
from train_anywhere.files.owned_folder import OwnedFolder, make_owned
from train_anywhere.files.plain_json import dumps, loads
from train_anywhere.files.removal import remove
from train_anywhere.runs.folder import new_run_id
from train_anywhere.search.space import Space

COMMAND = "study.json"
JOURNAL = "study.log"

SAMPLERS: dict[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    # constant_liar: values near those of trials that still run are not proposed again
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed, constant_liar=True),
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
}
"""Functions that make a sampler from a seed, by name."""

PRUNERS = {"none": optuna.pruners.NopPruner, "median": optuna.pruners.MedianPruner}

DIRECTION = {"min": StudyDirection.MINIMIZE, "max": StudyDirection.MAXIMIZE}

ENDED_STATES = (TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED)


@dataclass(frozen=True)
class Settings:
    """The settings of a study.

    Attributes:
        trials: number of all trials.
        at_once: number of trials that run at the same time.
        sampler, pruner: keys of `SAMPLERS` and `PRUNERS`.
        seed: seed of the sampler.
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
        optuna: Optuna's study.
    """

    def __init__(self, folder: Path, settings: Settings, space: Space) -> None:
        self.folder, self.space, self.settings = folder, space, settings
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna = optuna.create_study(
            storage=_storage(folder),
            study_name=folder.name,
            pruner=PRUNERS[settings.pruner](),
            direction=DIRECTION[settings.mode],
            load_if_exists=True,
        )
        # another seed after each start: the same seed would propose the same values again
        self.optuna.sampler = SAMPLERS[settings.sampler](settings.seed + len(self.trials))

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials so far, by number."""
        return self.optuna.get_trials(deepcopy=False)

    @property
    def remaining(self) -> int:
        """Number of trials that have not been started."""
        return self.settings.trials - len(self.trials)

    def list_running(self) -> list[int]:
        """Return the numbers of the trials that have started and not ended."""
        return [t.number for t in self.trials if t.state == TrialState.RUNNING]

    def ask(self) -> Trial:
        """Return a new trial."""
        return self.optuna.ask(dict(self.space.distributions))

    def tell(self, number: int, value: float | None, state: TrialState = TrialState.COMPLETE) -> None:
        """Record the end of a trial; without a value it has failed or was pruned."""
        if value is None or value != value:  # nan
            pruned = state == TrialState.PRUNED
            self.optuna.tell(number, state=TrialState.PRUNED if pruned else TrialState.FAIL)
        else:
            self.optuna.tell(number, value)

    def run_folder(self, number: int) -> Path:
        """Return the run folder of a trial."""
        return self.folder.with_name(f"{self.folder.name}-{number}")

    def words(self, values: dict[str, Any]) -> list[str]:
        """Return the overrides of a trial."""
        return self.space.words(values)


def _storage(folder: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(folder / JOURNAL)))


def owned_folder(folder: Path) -> OwnedFolder:
    """Return the folder of a study as one that this project may remove."""
    return OwnedFolder(folder.parent, (folder.name,), f"study {folder.name}")


def make_folder(folder: Path, arguments: Sequence[str], trials: int) -> None:
    """Make the folder of a study, unless it exists, and record the command in it.

    Raises:
        ConfigError: the folder is of another command, or can't be made.
    """
    if (folder / COMMAND).is_file():
        if (other := _read_command(folder).get("arguments")) != list(arguments):
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


def discard(folder: Path) -> None:
    """Remove a study without started trials."""
    remove(owned_folder(folder))


def find_folder(results: Path, name: str, arguments: Sequence[str], study_name: str | None) -> Path:
    """Return the named folder, else the newest one of the same command with trials left, else a new one."""
    if study_name:
        return results / name / study_name
    for path in sorted((results / name).glob(f"*/{COMMAND}"), reverse=True):
        if _read_command(path.parent).get("arguments") == list(arguments) and not _is_over(path.parent):
            return path.parent
    return results / name / new_run_id()


def _is_over(folder: Path) -> bool:
    with suppress(Exception):  # a study with an unreadable journal is not resumed
        trials = optuna.load_study(study_name=None, storage=_storage(folder)).get_trials(deepcopy=False)
        return sum(t.state in ENDED_STATES for t in trials) >= _read_command(folder)["trials"]
    return True


def _read_command(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = loads(read_text(folder / COMMAND))
        return found if isinstance(found, dict) else {}
    return {}
