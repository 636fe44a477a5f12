"""Optional features of a run, each a class.

`BUILT_IN` lists those of the engine, whose modules name their keys. `Feature` has a method for everything that one can add. A project
lists its own features under `features:` in configs/train.yaml: docs/how-to/add-a-feature.md. Other packages call features through this
module and never import one by name.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from train_anywhere.config.instantiate import explain_target_errors, instantiate
from train_anywhere.config.keys import TARGET, OpenSection, split_section
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.features.feature import Check, Feature, NodeService, Observer, Rank, Step
from train_anywhere.files import ROOT
from train_anywhere.files.node_disk import Staged, as_it_is
from train_anywhere.monitor import verdicts as rules
from train_anywhere.monitor.run_facts import Facts
from train_anywhere.runs.reopen.frozen import load_frozen

__all__ = ["Feature", "NodeService", "Observer", "Rank", "Step"]

BUILT_IN = {
    "search": "search.Search",
    "stage": "stage.Stage",
    "weights": "weights.WeightsCache",
    "hangs": "hangs.watch.HangWatch",
    "sampler": "sampler.SampleNodes",
    "serve": "serve.Serve",
    "interval": "observers.CheckpointInterval",
    "nan_watch": "observers.ReportNan",
    "queue": "restarts.Queue",
    "restarts": "restarts.Restarts",
}
"""Modules and classes by name, in the order in which they start; they end in the reverse one. The last starts after the project's."""


def built_in() -> list[Feature]:
    """Return the features of the engine, on or off."""
    found: list[Feature] = []
    for name, dotted in BUILT_IN.items():
        module, _, cls = dotted.rpartition(".")
        found.append(getattr(importlib.import_module(f"{__name__}.{module}"), cls)())
        found[-1].name = name
    return found


def _make_feature(name: str, section: OpenSection, framework: str) -> Feature:
    where, dotted = f"features.{name}", section.target[framework]
    if name in BUILT_IN:
        raise ConfigError(f"{where}: {name} is a feature of the engine; choose another name.")
    if not _in_project(dotted):
        raise ConfigError(
            f"{where}.{TARGET}={dotted} is called when a job is submitted, so it must be a class in a file of this project, such as "
            "src.features.disk_space.DiskSpace."
        )
    with explain_target_errors(f"{where}.{TARGET}={dotted}"):
        feature = instantiate(section, where, framework)
    if not isinstance(feature, Feature):
        raise ConfigError(
            f"{where}.{TARGET}={dotted} makes a {type(feature).__name__}; a feature is a subclass of "
            "train_anywhere.features.feature.Feature."
        )
    feature.name = name
    return feature


def _in_project(dotted: str) -> bool:
    """Return whether the module is a file of this project: finding it runs no other code."""
    parts = dotted.split(".")
    places = [ROOT.joinpath(*parts[:n]) for n in range(1, len(parts))]
    return any(p.with_suffix(".py").is_file() or (p / "__init__.py").is_file() for p in places)


def known() -> list[Feature]:
    """Return the features of the engine and those that this project lists in configs/train.yaml, if they can be created.

    Commands that read any run folder use this: they must not run a feature that only the folder names.
    """
    import yaml

    found, listed = built_in(), None
    with suppress(OSError, ValueError, yaml.YAMLError, AttributeError):
        listed = yaml.safe_load((ROOT / "configs" / "train.yaml").read_text()).get("features")
    for name, section in listed.items() if isinstance(listed, dict) else ():
        with suppress(Exception):  # a broken feature must stop a run, but not the status of one
            fields, _ = split_section(section, set(), [], f"features.{name}")
            found.append(_make_feature(name, OpenSection(**fields), next(iter(fields["target"]))))
    return found


@dataclass(frozen=True)
class Features:
    """The features of a run, in the order of their calls: `"stage" in features`.

    `exported` has the environment variables of the ranks, by feature name; `on_node` is whether each node runs a monitor process.
    """

    all: Sequence[Feature] = ()
    exported: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    on_node: bool = False

    @classmethod
    def of(cls, config: Config) -> "Features":
        """Return the features that a run uses. Raises ConfigError if one can't be created."""
        *found, innermost = built_in()
        for name, section in config.features.items():
            if config.framework in section.target:
                found.append(_make_feature(name, section, config.framework))
        found.append(innermost)
        for one in found:
            one.config = config
        found = [one for one in found if one.is_on()]
        on_node = not config.trainer.fast_dev_run and any(one.on_node for one in found)
        return cls(found, {one.name: one.variables() for one in found}, on_node)

    def __contains__(self, name: str) -> bool:
        return name in self.exported

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that the batch script exports."""
        return {name: value for found in self.exported.values() for name, value in found.items()}

    def unset_variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that `environ` lacks, or that are the engine's own, with their values."""
        own = {k: v for k, v in self.variables.items() if k.startswith("TRAIN_") or not environ.get(k)}
        return {name: os.path.expandvars(value) for name, value in own.items()}

    @property
    def supervising(self) -> list[Feature]:
        """The features that have something to do around the ranks of a job."""
        return [one for one in self.all if type(one).supervise is not Feature.supervise]

    def supervise(self, job: Any, stack: ExitStack) -> None:
        """Enter the contexts of all features around the ranks. Errors of one are printed, except those of a trial.

        Raises ConfigError: the trial of a search does not start.
        """
        for one in self.supervising:
            if one.name != "search":
                stack.enter_context(_printed(one, job))
                continue
            stack.enter_context(one.supervise(job))
            trial = load_frozen(job.run)
            for other in self.all:
                other.config = trial

    def prepare(self, results: Path, code: Path) -> "Features":
        """Return features with prepared files on the login node. Raises SubmitError, OSError."""
        return replace(self, exported={one.name: one.variables(results, code) for one in self.all})

    @property
    def in_script(self) -> dict[str, Any]:
        """The features that change the batch script, which all members of an array share."""
        changing = {f.name: self.exported[f.name] for f in self.all if self.exported[f.name]}
        on = {"a process on each node": self.on_node, "a feature around the ranks": bool(self.supervising)}
        return {**changing, **on}

    def in_rank(self, heartbeat: Any) -> AbstractContextManager[Any]:
        """Return the context in which a rank runs. `heartbeat` is its `Heartbeat`."""
        return next((one.in_rank(heartbeat) for one in self._find("hangs")), nullcontext())

    def observers(self, rank: Rank) -> list[Observer]:
        """Return the observers of a rank's training loop."""
        return [observer for one in self.all if (observer := one.observer(rank))]

    @property
    def stager(self) -> Staged:
        """The function that maps a path of the data set to the path to read instead."""
        return next((one.stager() for one in self._find("stage")), as_it_is)

    def _find(self, name: str) -> Iterator[Any]:
        return (one for one in self.all if one.name == name)


@contextmanager
def _printed(one: Feature, job: Any) -> Iterator[None]:
    context, report = ExitStack(), partial(print, sep=": ", file=sys.stderr, flush=True)
    with _caught(one, report):
        context.enter_context(one.supervise(job))
    yield
    with _caught(one, report):
        context.close()


@contextmanager
def _caught(one: Feature, report: Callable[[str, str], Any], raises: bool = False) -> Iterator[None]:
    """Report the error of a feature in the block, by the name of the feature, unless `raises`."""
    try:
        yield
    except Exception as error:
        if raises:
            raise
        report(f"features.{one.name}", f"{type(error).__name__}: {error}")


def problems(config: Config, *stages: Check, members: int = 1) -> list[str]:
    """Return the problems that features find at some stages, see `Feature.check`."""
    try:
        found = Features.of(config).all
        return [problem for one in found for stage in stages for problem in one.check(stage, members)]
    except ConfigError as error:
        return error.problems


def describe(facts: Facts) -> tuple[list[str], dict[str, str]]:
    """Return the verdicts on a run, the worst first, and further rows of the status and the report, by title.

    The error of a project's feature stands in their place, so that the status is shown.
    """
    sentences, errors, rows = list[str](), dict[str, str](), dict[str, str]()
    for one in known():
        with _caught(one, errors.__setitem__, raises=one.name in BUILT_IN):
            sentences += one.verdicts(facts)
        with _caught(one, rows.__setitem__, raises=one.name in BUILT_IN):
            rows |= one.rows(facts.run, facts.info) if facts.run else {}
    sentences += [f"{name}: {why}" for name, why in errors.items()]
    return rules.verdicts(facts, sentences), rows
