"""Base class of optional features. Each hook does nothing until it is overridden."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from train_anywhere.config.schema import Config
from train_anywhere.runs.folder import RunDir

Check = Literal["any", "job", "submission", "allocation", "here"]
"""Where the configuration is checked, see `Feature.check`."""


class NodeService(Protocol):
    """A service in the monitor process of a node, polled in its own thread every `every_seconds`, the first time after them.

    An OSError is ignored; any other exception ends this service only.
    """

    every_seconds: float

    def poll(self, now: float) -> None:
        """Do the work that is due at `now`, in Unix seconds."""

    def close(self) -> None:
        """Clean up at the end of the job, if necessary. Nothing waits for this call."""
        return


@dataclass(frozen=True)
class Step:
    """A training step after which the metrics were read.

    Attributes:
        number: optimizer steps done, from 1.
        epoch, batch: number of the epoch, from 0, and of the batches done in it.
        metrics: metrics since they were last read, reduced over all ranks.
        last: whether an epoch, or a validation within it, ends with this step: `after_validation` gets its metrics too.
    """

    number: int
    epoch: int
    batch: int
    metrics: Mapping[str, float]
    last: bool = False


class Observer:
    """Hooks of a feature in the training loop. Every rank calls them at the same steps."""

    def after_step(self, step: Step) -> None:
        """Run when metrics are read.

        That is every `trainer.log_every_n_steps` steps, before a validation, and at the end of an epoch.
        """

    def after_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Run after a validation, and at the end of an epoch without one."""

    def next_step(self, step: int) -> int | None:
        """Return the next optimizer step after `step` at which to run `at_step`, the same on all ranks. None: never again."""
        return None

    def at_step(self, step: int) -> bool:
        """Run after step `step`, which `next_step` has returned; return whether a checkpoint is due.

        If a call of the framework makes several steps, this runs after the call that contains the step.
        """
        return False

    def requests_checkpoint(self) -> bool:
        """Return whether a checkpoint is due now. The other ranks follow the answer of rank 0."""
        return False

    def after_checkpoint(self, seconds: float) -> None:
        """Run after a checkpoint for which this rank waited `seconds`."""

    def at_end(self) -> None:
        """Run when training is complete, before the test, unless a signal stopped it."""


class Observers(Observer):
    """Several observers as one: each method calls that of every observer."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self.all = [*observers]
        self._next: list[tuple[int | None, Observer]] = []
        self._reached, self._due = -1, False
        for hook in ("after_step", "after_validation", "after_checkpoint", "at_end"):
            setattr(self, hook, partial(self._call, hook))

    def _call(self, hook: str, *arguments: Any) -> None:
        for one in self.all:
            getattr(one, hook)(*arguments)

    def requests_checkpoint(self) -> bool:
        """Return whether any observer requests a checkpoint."""
        return any(one.requests_checkpoint() for one in self.all)

    def start(self, step: int) -> None:
        """Ask each observer for its first step after `step`, the number of steps of earlier attempts."""
        self._next = [(one.next_step(step), one) for one in self.all]

    def reach(self, step: int) -> bool:
        """Call `at_step` once for each step up to `step` that was wanted; return whether a checkpoint is due after `step`."""
        if self.all and not self._next:
            self.start(step - 1)
        due = self._due if step == self._reached else False
        for number, (wanted, one) in enumerate(self._next):
            while wanted is not None and wanted <= step:
                due |= one.at_step(wanted)
                wanted = one.next_step(wanted)
                self._next[number] = wanted, one
        self._reached, self._due = step, due
        return due


@dataclass(frozen=True)
class Rank:
    """Facts of a rank, for its observers: number of its first device, and of the devices over all ranks."""

    run: RunDir
    first_device: int
    devices: int


class Feature:
    """An optional feature of a run.

    All methods but `observer` and `node_services` are also called on the login node, so a module that defines a feature must not import
    a framework or numpy.

    Attributes:
        config: configuration of the run; not set when `verdicts` or `rows` is called.
        name: key of the feature in `Job.features`.
        on_node: whether `node_services` needs the monitor process on each node.
    """

    config: Config
    name = ""
    on_node = False

    def is_on(self) -> bool:
        """Return whether this run uses the feature, which listing one in `features:` turns on."""
        return True

    def check(self, stage: Check, members: int) -> list[str]:
        """Return one message for each problem of the configuration, before anything is written.

        Args:
            stage: "any": on any machine; "job": in a job; "submission": on the login node, such as its folders, but not in a dry run
                for another machine; "allocation": inside an allocation that has started; "here": of a run on this machine.
            members: number of runs of a sweep, else 1.
        """
        return []

    # --- the batch job

    def variables(self, results: Path | None = None, code: Path | None = None) -> Mapping[str, str]:
        """Return environment variables of the ranks, the same for all members of an array.

        $NAME in a value is another variable there. A variable that the user has exported keeps its value, unless its name begins with
        TRAIN_. A submission also calls it on the login node, to prepare files in the folder of all results and the copied code. Raises
        SubmitError, OSError.
        """
        return {}

    def supervise(self, job: Any) -> AbstractContextManager[Any]:
        """Return a context around all starts of the ranks, in the process that watches them.

        `job` is a `train_anywhere.job.batch_job.JobRanks`, or a `train_anywhere.launch.processes.LocalRun`. Both have `run`, `environ` (of
        the ranks), `run_on_each_node`, `stop`, which lets the ranks save and end, and, at the end of the context, `code`: the
        exit code.
        """
        return nullcontext()

    # --- the nodes and the ranks

    def node_services(self, run: RunDir, host: str) -> list[Callable[[], NodeService]]:
        """Return functions that make services of a node's monitor process."""
        return []

    def observer(self, rank: Rank) -> Observer | None:
        """Return this feature's observer of a rank's training loop, or None."""
        return None

    # --- the status and the report

    def verdicts(self, facts: Any) -> Iterable[str]:
        """Return sentences for the status and the report. `facts` is a `run_facts.Facts`."""
        return ()

    def rows(self, run: RunDir, info: Mapping[str, Any]) -> Mapping[str, str]:
        """Return extra rows of the status and the report, by title. `info` is run.json."""
        return {}
