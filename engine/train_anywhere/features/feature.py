"""What a feature of a run can add, as one class with methods that add nothing until they are overridden."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from train_anywhere.config.schema import Config
from train_anywhere.data.known import Staged
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import display_path

STAGES = ("requeue", "before_ranks", "ranks", "after_ranks", "at_end")
"""Places of the batch script at which a feature may include a template, in this order. docs/batch-script.md"""


@dataclass(frozen=True)
class Followed:
    """What a job waits for in the queue.

    Attributes:
        path: the run, or the sweep.
        jobs: ids of jobs that must complete; none if all is complete already.
    """

    path: str
    jobs: tuple[str, ...]

    @property
    def note(self) -> str:
        """A line for the user who submits the job."""
        what = display_path(Path(self.path))
        return f"it starts when {what} is complete (job {', '.join(self.jobs)})." if self.jobs else ""


class Part(Protocol):
    """A task of the side process of a node, called in a thread of its own.

    An OSError is passed over; any other exception ends this part only.

    Attributes:
        every_seconds: time between two calls; the first comes after that time.
    """

    every_seconds: float

    def look(self, now: float) -> None:
        """Do the work that is due at `now`, in Unix seconds."""

    def close(self) -> None:
        """End; the job is over, and nothing waits for this."""


@dataclass(frozen=True)
class Step:
    """A training step after which the metrics were read.

    Attributes:
        number: optimizer steps done, from 1.
        epoch: from 0.
        batch: batches of this epoch that are done.
        metrics: measured since they were last read, over all ranks.
        counted: with `Feature.counts`, for each device of this process, the batches since the metrics were last read, and how many of
            them came before the first without a number.
        last: the last step of an epoch, whose metrics `after_validation` gets too.
    """

    number: int
    epoch: int
    batch: int
    metrics: Mapping[str, float]
    counted: Sequence[tuple[int, int]] = ()
    last: bool = False


class Observer:
    """What a feature does in the training loop. Every rank has one, and calls its methods at the same steps."""

    def after_step(self, step: Step) -> None:
        """Called when metrics are read: every `trainer.log_every_n_steps` steps, and at the end of an epoch."""

    def after_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called at the end of an epoch, after its validation if it has one."""

    def due(self, step: int) -> bool:
        """Return whether a checkpoint is due after optimizer step `step`; all ranks return the same."""
        return False

    def requests_checkpoint(self) -> bool:
        """Return whether a checkpoint is due now; only rank 0 is asked, and the others follow it."""
        return False

    def after_checkpoint(self, seconds: float) -> None:
        """Called after a checkpoint for which this rank waited `seconds`."""

    def at_end(self) -> None:
        """Called when training is complete, before the test; not after a signal."""


class Observers(Observer):
    """Several observers as one."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self.all = [*observers]

    def after_step(self, step: Step) -> None:
        """Call each."""
        for one in self.all:
            one.after_step(step)

    def after_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Call each."""
        for one in self.all:
            one.after_validation(step, metrics)

    def due(self, step: int) -> bool:
        """Return whether one of them says so."""
        return any(one.due(step) for one in self.all)

    def requests_checkpoint(self) -> bool:
        """Return whether one of them says so."""
        return any(one.requests_checkpoint() for one in self.all)

    def after_checkpoint(self, seconds: float) -> None:
        """Call each."""
        for one in self.all:
            one.after_checkpoint(seconds)

    def at_end(self) -> None:
        """Call each."""
        for one in self.all:
            one.at_end()


@dataclass(frozen=True)
class Rank:
    """What an observer may know of the rank that it observes.

    Attributes:
        run: the run folder.
        native: the loop makes the steps of a task of this project, not those of a user's module.
        first: number of this process's first device.
        devices: over all ranks.
        accumulate: batches in an optimizer step.
        total: sums numbers over the ranks, which all call it together.
        keep: (epoch, batch, rank, file) writes that rank's batch to a file and returns the numbers of its rows; None if the data can't be
            read again.
    """

    run: RunDir
    native: bool
    first: int
    devices: int
    accumulate: int
    total: Callable[[list[float]], list[float]]
    keep: Callable[[int, int, int, Path], list[int]] | None


class Feature:
    """An optional feature of a run.

    A method adds nothing unless a subclass overrides it. All but `observer` and `parts` are also called on the login node: a module that
    defines a feature imports no framework and no numpy.

    Attributes:
        config: of the run; set before any other method than `follow`, `why`, `verdicts` and `rows` is called.
        name: key of the feature in `Job.features`, in templates and in the folder of its templates.
        exports: environment variables of its templates that the ranks need on other nodes.
        counts: its observer needs `Step.counted`, which is one small operation for each batch.
        python: the shell word that starts Python in the job, if not the one that the configuration names.
    """

    config: Config
    name = ""
    counts = False
    exports: tuple[str, ...] = ()
    python = ""

    @property
    def on_node(self) -> bool:
        """Whether `parts` gives the side process of each node something to do; a subclass may set it to True."""
        return False

    def wanted(self) -> bool:
        """Return whether this run has the feature. One that is listed in `features:` is wanted."""
        return True

    # --- the configuration: a message for each problem

    def problems(self) -> list[str]:
        """Return what can't work on any machine."""
        return []

    def problems_of_job(self, members: int) -> list[str]:
        """Return what can't work in a job; `members` is the number of runs of a sweep, else 1."""
        return []

    def problems_here(self) -> list[str]:
        """Return what can't work in a run on this machine, `cluster=local`."""
        return []

    def problems_at_submission(self) -> list[str]:
        """Return what is wrong with folders of the login node; not asked in a dry run for another machine."""
        return []

    def problems_in_allocation(self) -> list[str]:
        """Return what can't work in an allocation that has started."""
        return []

    # --- the job

    def settings(self) -> Any:
        """Return what templates read as `job.features[name]`; two members of one array must have the same."""
        return True

    def before_submission(self, settings: Any, results: Path) -> Any:
        """Return the settings, completed by work on the login node. Raises SubmitError."""
        return settings

    def after_snapshot(self, settings: Any, code: Path) -> Any:
        """Return the settings, completed by work on the copy of the code. Raises OSError."""
        return settings

    @classmethod
    def folder(cls) -> Path:
        """Return the folder with the templates `<stage>.sh.j2`: that of the module which defines the class."""
        return Path(inspect.getfile(cls)).parent

    @classmethod
    def has(cls, stage: str) -> bool:
        """Return whether the class has a template for a stage."""
        return (cls.folder() / f"{stage}.sh.j2").is_file()

    def follow(self, info: Mapping[str, Any], scheduler: str, results: Path) -> Followed | None:
        """Return what a job waits for; see `train_anywhere.features.follow`."""
        return None

    # --- the nodes and the ranks

    def parts(self, run: RunDir, host: str) -> list[Callable[[], Part]]:
        """Return functions that make parts of the side process of a node; one that raises is passed over."""
        return []

    def in_rank(self, heartbeat: Path | None) -> AbstractContextManager[Any]:
        """Return a context in which a rank runs; `heartbeat` is its file, None if the node's memory takes none."""
        return nullcontext()

    def observer(self, rank: Rank) -> Observer | None:
        """Return the observer of the training loop of a rank."""
        return None

    def staging(self) -> Staged | None:
        """Return a function from a path of the data set to the path to read instead."""
        return None

    def resume_until(self, run: RunDir) -> int | None:
        """Return the last step whose checkpoint the run may resume from; None: any."""
        return None

    def starts_again(self, run: RunDir) -> str:
        """Return why the ranks that have just failed are started again on this machine; empty if they are not."""
        return ""

    # --- what people read

    def why(self, run: Any, state: str, info: Mapping[str, Any]) -> str:
        """Return why a job has left the queue; see `train_anywhere.features.why`."""
        return ""

    def verdicts(self, facts: Any) -> Iterable[str]:
        """Return sentences for the status and the report; `facts` are `train_anywhere.monitor.run_facts.Facts`."""
        return ()

    def rows(self, run: RunDir, info: Mapping[str, Any]) -> Mapping[str, str]:
        """Return further rows of the status and the report, by title; `info` is the content of run.json."""
        return {}
