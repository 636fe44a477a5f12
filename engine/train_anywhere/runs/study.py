"""The folder of a search: its command and its space, which each trial reads.

results/<name>/<study>/        study.json  the search       study.log  Optuna's journal
results/<name>/<study>-<n>/    the run folder of a trial    trial.json its number in the journal, and its values
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from train_anywhere.errors import ConfigError
from train_anywhere.files.atomic import dumps, read_json, write_atomic
from train_anywhere.files.removal import OwnedFolder, make_owned
from train_anywhere.runs.folder import RunDir

COMMAND, JOURNAL, TRIAL = "study.json", "study.log", "trial.json"

SAMPLERS, PRUNERS = ("tpe", "random"), ("none", "median")

ENDED, MAX_FAILURES = ("completed", "failed", "cancelled"), 3
"""States in run.json of a trial that is not resumed; failed trials without a complete one after which the cause is not the trial."""


@dataclass(frozen=True)
class Space:
    """The overrides of a search.

    Attributes:
        fixed: overrides with one value, equal in all trials.
        distributions: the distribution of each searched key, in the JSON form of Optuna.
        added: searched keys that Hydra may have to add (`++task.hidden`).
    """

    fixed: Sequence[str]
    distributions: Mapping[str, Mapping[str, Any]]
    added: Sequence[str] = ()

    def words(self, values: Mapping[str, Any]) -> list[str]:
        """Return the overrides of a trial."""
        return [*self.fixed, *(f"{'++' * (key in self.added)}{key}={value}" for key, value in values.items())]

    def describe(self) -> dict[str, str]:
        """Return the distributions as Optuna writes them."""
        return {
            key: f"{d['name']}({', '.join(f'{name}={value}' for name, value in sorted(d['attributes'].items()))})"
            for key, d in self.distributions.items()
        }

    def extremes(self) -> list[list[str]]:
        """Return the overrides of the trials with all lowest and all highest values."""
        known = {key: d["attributes"] for key, d in self.distributions.items()}
        ends = {key: d.get("choices") or (d["low"], d["high"]) for key, d in known.items()}
        return [self.words({key: values[at] for key, values in ends.items()}) for at in (0, -1)]


@dataclass(frozen=True)
class Study:
    """A search, as study.json records it.

    Attributes:
        arguments: the command line.
        seed: seed of the sampler; each trial adds its number.
    """

    arguments: Sequence[str]
    trials: int
    sampler: str
    pruner: str
    seed: int
    space: Space

    def write(self, folder: Path) -> None:
        """Make the folder, unless it exists, and write study.json. Raises ConfigError: it is of another command, or can't be made."""
        new = not (folder / COMMAND).is_file()
        if not new and (other := read_json(folder / COMMAND).get("arguments")) != list(self.arguments):
            typed = " ".join(map(str, other)) if isinstance(other, list) else "its study.json is damaged"
            raise ConfigError(
                f"hydra.sweeper.study_name={folder.name} is a study of another command: {typed}; use that command, or choose another name."
            )
        try:
            if new:
                make_owned(owned_folder(folder))
        except OSError as error:
            raise ConfigError(
                f"the study's folder {folder} can't be made ({error.strerror or error}); use another hydra.sweeper.study_name."
            ) from error
        write_atomic(folder / COMMAND, dumps(asdict(self)))


def read_study(folder: Path) -> Study:
    """Return the search in a folder. Raises ConfigError if study.json is damaged."""
    known = read_json(folder / COMMAND)
    try:
        return Study(**{**known, "space": Space(**known["space"])})
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder / COMMAND} is damaged or missing; start a new study with another hydra.sweeper.study_name."
        ) from error


def owned_folder(folder: Path) -> OwnedFolder:
    """Return the folder of a study as one that this project may remove."""
    return OwnedFolder(folder.parent, (folder.name,), f"study {folder.name}")


def members(folder: Path) -> dict[int, RunDir]:
    """Return the run folders of a study's trials by number, in order."""
    found = {path.name.rpartition("-")[2]: RunDir(path) for path in folder.parent.glob(f"{folder.name}-*")}
    return {int(number): found[number] for number in sorted(filter(str.isdecimal, found), key=int)}
