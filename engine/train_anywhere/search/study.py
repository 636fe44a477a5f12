"""The trials of a search, in a file of the sweep's folder: what was interrupted goes on."""

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
from train_anywhere.files.marked import Place, make
from train_anywhere.files.plain_json import dumps, loads
from train_anywhere.files.removal import remove
from train_anywhere.runs.folder import new_id
from train_anywhere.search.space import Space

COMMAND = "study.json"
JOURNAL = "study.log"

SAMPLERS: dict[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    # constant_liar: values near those of trials that still run are not proposed again
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed, constant_liar=True),
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
}
"""By name, from a seed."""

PRUNERS = {"none": optuna.pruners.NopPruner, "median": optuna.pruners.MedianPruner}

DIRECTION = {"min": StudyDirection.MINIMIZE, "max": StudyDirection.MAXIMIZE}

OVER = (TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED)


@dataclass(frozen=True)
class Wanted:
    """What the command asks for.

    Attributes:
        trials: how many in all.
        at_once: how many run at the same time.
        sampler, pruner: of `SAMPLERS` and `PRUNERS`.
        seed: of the sampler.
        metric, mode: what each trial is judged by, and whether its least or greatest value is best.
    """

    trials: int
    at_once: int
    sampler: str
    pruner: str
    seed: int
    metric: str
    mode: str


class Study:
    """A folder with a journal of trials; one process at a time uses it.

    Attributes:
        folder: of the study; the run folder of trial n is `<folder>-<n>`.
        optuna: the study in Optuna's words.
    """

    def __init__(self, folder: Path, wanted: Wanted, space: Space) -> None:
        self.folder, self.space, self.wanted = folder, space, wanted
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna = optuna.create_study(
            storage=_storage(folder),
            study_name=folder.name,
            pruner=PRUNERS[wanted.pruner](),
            direction=DIRECTION[wanted.mode],
            load_if_exists=True,
        )
        # another seed after each start: the same one would draw the same values again
        self.optuna.sampler = SAMPLERS[wanted.sampler](wanted.seed + len(self.trials))

    @property
    def trials(self) -> list[FrozenTrial]:
        """All so far, by number."""
        return self.optuna.get_trials(deepcopy=False)

    @property
    def left(self) -> int:
        """How many are still to begin."""
        return self.wanted.trials - len(self.trials)

    def running(self) -> list[int]:
        """Numbers of those that have begun and have no end."""
        return [t.number for t in self.trials if t.state == TrialState.RUNNING]

    def ask(self) -> Trial:
        """A new trial."""
        return self.optuna.ask(dict(self.space.drawn))

    def tell(self, number: int, value: float | None, state: TrialState = TrialState.COMPLETE) -> None:
        """A trial has ended; without a value it has failed."""
        if value is None or value != value:
            self.optuna.tell(
                number, state=TrialState.PRUNED if state == TrialState.PRUNED else TrialState.FAIL
            )
        else:
            self.optuna.tell(number, value)

    def run_folder(self, number: int) -> Path:
        """Of a trial."""
        return self.folder.with_name(f"{self.folder.name}-{number}")

    def words(self, values: dict[str, Any]) -> list[str]:
        """The overrides of a trial."""
        return self.space.words(values)


def _storage(folder: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(folder / JOURNAL)))


def place(folder: Path) -> Place:
    """The folder of a study, as it is made and removed."""
    return Place(folder.parent, (folder.name,), f"study {folder.name}")


def begin(folder: Path, arguments: Sequence[str], trials: int) -> None:
    """Make the folder of a study, or use the one that is there.

    Raises:
        ConfigError: it is of another command, or can't be made.
    """
    if (folder / COMMAND).is_file():
        if (other := _command(folder).get("arguments")) != list(arguments):
            typed = " ".join(map(str, other)) if isinstance(other, list) else "its study.json is damaged"
            raise ConfigError(
                f"hydra.sweeper.study_name={folder.name} is a study of another command: {typed}; type that one, or choose another name."
            )
    else:
        try:
            make(place(folder))
        except OSError as error:
            raise ConfigError(
                f"the study's folder {folder} can't be made ({error.strerror or error}); use another hydra.sweeper.study_name."
            ) from error
    write_atomic(folder / COMMAND, dumps({"arguments": list(arguments), "trials": trials}))


def discard(folder: Path) -> None:
    """Remove a study of which no trial has begun."""
    remove(place(folder))


def folder_of(results: Path, name: str, arguments: Sequence[str], study_name: str | None) -> Path:
    """The folder of the study: the named one, else the newest of the same command that is not at its end, else a new one."""
    if study_name:
        return results / name / study_name
    for path in sorted((results / name).glob(f"*/{COMMAND}"), reverse=True):
        if _command(path.parent).get("arguments") == list(arguments) and not _is_over(path.parent):
            return path.parent
    return results / name / new_id()


def _is_over(folder: Path) -> bool:
    with suppress(Exception):  # a journal that can't be read is not gone on with
        trials = optuna.load_study(study_name=None, storage=_storage(folder)).get_trials(deepcopy=False)
        return sum(t.state in OVER for t in trials) >= _command(folder)["trials"]
    return True


def _command(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = loads(read_text(folder / COMMAND))
        return found if isinstance(found, dict) else {}
    return {}
