"""Optional features of a run: a folder and a class each.

pack_env    `cluster.pack_env`: each node unpacks the environment and the code on its own disk
stage       `data.stage`: each node copies the data set to its own disk
hangs       `monitor.hang_minutes`: finds ranks that hang or are slow, and can requeue the job
sampler     `monitor.sample_seconds`: samples of CPUs, memory and GPUs
serve       `monitor.serve`, `monitor.dashboard`: pages from the first node
interval    `checkpoint.interval` and `every_n_*`: checkpoints within an epoch
replay      `trainer.detect_nan=replay`: computes a loss of nan again
nan_watch   `trainer.detect_nan`: reports a loss of nan or inf
bad_nodes   nodes that failed twice are left out at a requeue
after       `after=RUN`: starts when another run is complete
chain       `cluster.chain`: several jobs in a row
restarts    `cluster.retries`, elastic jobs: starts the ranks again in the same job

`Feature` lists what a feature can add. A project lists its own under `features:` in configs/train.yaml: docs/features.md.
Other packages call features through this module, and never import one by name. Public: what `__all__` lists.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from train_anywhere.config.choices import FeatureClass
from train_anywhere.config.instantiate import instantiate, refusals
from train_anywhere.config.open_groups import TARGET, split_open
from train_anywhere.config.schema import Config
from train_anywhere.data.known import Staged, as_it_is
from train_anywhere.errors import ConfigError
from train_anywhere.features.feature import STAGES, Feature, Followed, Observer, Part, Rank, Step
from train_anywhere.files import ROOT
from train_anywhere.runs.folder import RunDir

__all__ = ["Feature", "Observer", "Part", "Rank", "Step"]

BUILT_IN = {
    "pack_env": "PackEnv",
    "stage": "Stage",
    "hangs": "HangWatch",
    "sampler": "SampleNodes",
    "serve": "Serve",
    "interval": "CheckpointInterval",
    "replay": "ReplayNan",
    "nan_watch": "ReportNan",
    "bad_nodes": "BadNodes",
    "after": "After",
    "chain": "Chain",
}
"""Folders and their classes. Templates are included in this order, at the end of the script in reverse."""

INNERMOST = {"restarts": "Restarts"}
"""Comes after the features of the project: its templates are a loop around each start of the ranks."""


def built_in(classes: Mapping[str, str] | None = None) -> list[Feature]:
    """Return the features of the engine, wanted or not."""
    chosen = {**BUILT_IN, **INNERMOST} if classes is None else classes
    return [getattr(importlib.import_module(f"{__name__}.{name}"), named)() for name, named in chosen.items()]


def _of_project(config: Config) -> Iterator[Feature]:
    for name, section in config.features.items():
        if config.framework in section.target:
            yield _made(name, section, config.framework)


def _made(name: str, section: FeatureClass, framework: str) -> Feature:
    where, dotted = f"features.{name}", section.target[framework]
    if name in (*BUILT_IN, *INNERMOST):
        raise ConfigError(f"{where}: {name} is a feature of the engine; choose another name.")
    if not _in_project(dotted):
        raise ConfigError(
            f"{where}.{TARGET}={dotted} is called when a job is submitted, so it must be a class in a file of this project, such as "
            "src.features.disk_space.DiskSpace."
        )
    with refusals(f"{where}.{TARGET}={dotted}"):
        made = instantiate(section, where, framework)
    if not isinstance(made, Feature):
        raise ConfigError(
            f"{where}.{TARGET}={dotted} makes a {type(made).__name__}; a feature is a subclass of train_anywhere.features.feature.Feature."
        )
    made.name = name
    return made


def _in_project(dotted: str) -> bool:
    """Return whether the module is a file of this project, so that looking for it runs no other code."""
    parts = dotted.split(".")
    places = [ROOT.joinpath(*parts[:n]) for n in range(1, len(parts))]
    return any(p.with_suffix(".py").is_file() or (p / "__init__.py").is_file() for p in places)


def known() -> list[Feature]:
    """Return the features of the engine, and those that this project lists in configs/train.yaml.

    For commands that look at any run folder: a feature that only the folder names is not run. One that can't be made is left out.
    """
    import yaml

    found, listed = built_in(), None
    with suppress(OSError, ValueError, yaml.YAMLError, AttributeError):
        listed = yaml.safe_load((ROOT / "configs" / "train.yaml").read_text()).get("features")
    for name, section in listed.items() if isinstance(listed, dict) else ():
        with suppress(Exception):  # a run is refused by it, and a look at a run is not
            fields, _ = split_open(section, set(), [], f"features.{name}")
            found.append(_made(name, FeatureClass(**fields), next(iter(fields["target"]))))
    return found


@dataclass(frozen=True)
class Features:
    """The features of a run, in the order in which they are called: `"stage" in features`, `features["pack_env"].archive`.

    Attributes:
        settings: of a job, by the names of its features.
        on_node: a side process runs on each node.
    """

    all: Sequence[Feature] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    on_node: bool = False

    @classmethod
    def of(cls, config: Config) -> "Features":
        """Return the features that a run has. Raises ConfigError: a feature of the project can't be made."""
        found = [*built_in(BUILT_IN), *_of_project(config), *built_in(INNERMOST)]
        for one in found:
            one.config = config
        found = [one for one in found if one.wanted()]
        on_node = not config.trainer.fast_dev_run and any(one.on_node for one in found)
        return cls(found, {one.name: one.settings() for one in found}, on_node)

    def __contains__(self, name: str) -> bool:
        return name in self.settings

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]

    # --- the batch script

    @property
    def python(self) -> str:
        """The shell word that starts Python; empty: what the configuration names."""
        return next((one.python for one in self.all if one.python), "")

    @property
    def exports(self) -> list[str]:
        """Environment variables that ranks on other nodes need."""
        return [name for one in self.all for name in one.exports]

    def at(self, stage: str) -> list[str]:
        """Return the names of the templates to include at a stage of the batch script."""
        order = reversed(self.all) if stage == "at_end" else self.all
        return [f"{one.name}/{stage}.sh.j2" for one in order if one.has(stage)]

    def before_submission(self, results: Path) -> "Features":
        """Complete the settings by work on the login node. Raises SubmitError."""
        return replace(self, settings={f.name: f.before_submission(self[f.name], results) for f in self.all})

    def after_snapshot(self, code: Path) -> "Features":
        """Complete the settings by work on the copy of the code. Raises OSError."""
        return replace(self, settings={f.name: f.after_snapshot(self[f.name], code) for f in self.all})

    @property
    def in_script(self) -> dict[str, Any]:
        """Settings of the features that change the batch script; members of an array share one script."""
        changing = [
            one for one in self.all if one.python or one.exports or any(one.has(stage) for stage in STAGES)
        ]
        return {one.name: self[one.name] for one in changing} | {"a process on each node": self.on_node}

    # --- the nodes and the ranks

    def parts(self, run: RunDir, host: str) -> list[Callable[[], Part]]:
        """Return functions that make the parts of the side process of a node."""
        return [make for one in self.all for make in one.parts(run, host)]

    @contextmanager
    def in_rank(self, heartbeat: Path | None) -> Iterator[None]:
        """Enter the contexts in which a rank runs."""
        with ExitStack() as stack:
            for one in self.all:
                stack.enter_context(one.in_rank(heartbeat))
            yield

    @property
    def counts(self) -> bool:
        """Whether an observer needs the counts of each batch."""
        return any(one.counts for one in self.all)

    def observers(self, rank: Rank) -> list[Observer]:
        """Return the observers of the training loop of a rank."""
        return [observer for one in self.all if (observer := one.observer(rank))]

    @property
    def staging(self) -> Staged:
        """A function from a path of the data set to the path to read instead."""
        return next((found for one in self.all if (found := one.staging())), as_it_is)

    def resume_until(self, run: RunDir) -> int | None:
        """Return the last step whose checkpoint the run may resume from; None: any."""
        limits = [limit for one in self.all if (limit := one.resume_until(run)) is not None]
        return min(limits, default=None)

    def starts_again(self, run: RunDir) -> str:
        """Return why the ranks that have just failed are started again on this machine; empty if they are not."""
        return next((why for one in self.all if (why := one.starts_again(run))), "")


def problems(config: Config, ask: Callable[[Feature], Iterable[str]]) -> list[str]:
    """Return what features report, such as `lambda feature: feature.problems_here()`."""
    try:
        return [problem for one in Features.of(config).all for problem in ask(one)]
    except ConfigError as error:
        return error.problems


def follow(info: Mapping[str, Any], scheduler: str, results: Path) -> Followed | None:
    """Return the jobs that must complete before a job starts.

    Args:
        info: run.json of the run, or {"after": config.after} for one that has none yet.

    Raises:
        ConfigError, SubmitError: it can't wait for them.
        SchedulerError: the scheduler does not answer.
    """
    return next((f for one in known() if (f := one.follow(info, scheduler, results))), None)


def why(run: Any, state: str, info: Mapping[str, Any]) -> str:
    """Return why a job has left the queue, as far as a feature knows; `run` is `train_anywhere.slurm.status.find_runs.Submitted`."""
    return next((said for one in known() if (said := one.why(run, state, info))), "")


def verdicts(facts: Any) -> list[str]:
    """Return what features say of a run; a feature of the project that fails says so."""
    found: list[str] = []
    for one in known():
        try:
            found += one.verdicts(facts)
        except Exception as error:
            found.append(f"features.{one.name}: {_failed(one, error)}")
    return found


def rows(run: RunDir, info: Mapping[str, Any]) -> dict[str, str]:
    """Return further rows of the status and the report, by title; a feature of the project that fails says so."""
    found: dict[str, str] = {}
    for one in known():
        try:
            found |= one.rows(run, info)
        except Exception as error:
            found[f"features.{one.name}"] = _failed(one, error)
    return found


def _failed(one: Feature, error: Exception) -> str:
    """Return the error of a feature of the project, since a status must be shown; raise one of the engine."""
    if one.name in (*BUILT_IN, *INNERMOST):
        raise error
    return f"{type(error).__name__}: {error}"
