"""Every error a user can cause, in one tree.

    ProjectError            the message is one sentence: what is wrong, why, what to do instead
    ├── ConfigError         a configuration that can't work; `problems` lists all reasons
    ├── DataError           a data set that is missing, damaged or does not fit the configuration
    ├── CheckpointError     a checkpoint or run folder that can't be written, read or resumed from
    ├── TopologyError       the environment of this process does not say which rank it is
    ├── LostRankError       another rank ended or can't be reached: what happened there is the cause
    ├── NotFiniteError      the loss is not a number any more, and `trainer.detect_nan=stop`
    ├── RanksDifferError    ranks that should have the same weights have different ones
    ├── SchedulerError      the scheduler can't be reached: nothing is known about its jobs
    │   └── NoAnswer        it did not answer: the request may have been carried out
    └── SubmitError         a refused submission, or a run for which jobs.py can't do what was asked
        ├── UnclearError    a job is queued that should not be, or may be
        └── Interrupted     Ctrl-C during a submission, which was undone

`src/train.py` prints these without a traceback. Anything else that escapes is a bug and keeps its traceback.
"""

import signal
from collections.abc import Iterator

__all__ = ["CheckpointError", "ConfigError", "DataError", "ProjectError", "SchedulerError", "SubmitError"]

REFUSED = 2
"""Exit code of a request that was refused: one message was printed and nothing was written."""

NOT_FINITE = 3
"""Exit code of a run that finished with a loss of nan or inf."""

STOPPED = 75
"""Exit code of a rank that was stopped by a signal and has saved a checkpoint: sysexits.h's EX_TEMPFAIL, "try again later"."""

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as shells count."""


UNNAMED = "the request was refused, and nothing says why: please report the command."
"""Used for an empty list of problems, so that no refusal is a bare `error:`."""


class ProjectError(Exception):
    """Root of the tree: caught once, at the top of each entry script, whose exit code is `exit_code`."""

    exit_code = REFUSED


class ConfigError(ProjectError):
    """All problems of a configuration at once.

    Args:
        problems: one sentence each.
    """

    def __init__(self, *problems: str) -> None:
        self.problems = [p for p in problems if p.strip()] or [UNNAMED]
        many = len(self.problems) > 1
        head = f"{len(self.problems)} problems:\n" if many else ""
        super().__init__(head + "\n".join(f"  - {p}" if many else p for p in self.problems))


class DataError(ProjectError):
    """A data set that is missing, is damaged or does not fit the configuration."""


class CheckpointError(ProjectError):
    """A checkpoint or run folder that can't be written, read or resumed from."""


class TopologyError(ProjectError):
    """The environment of this process does not say which rank it is."""


class LostRankError(ProjectError):
    """Another rank ended or can't be reached: what happened there is the cause."""


class SchedulerError(ProjectError):
    """The scheduler can't be reached: nothing is known about its jobs, which does not mean that there are none."""


class NoAnswer(SchedulerError):
    """The scheduler did not answer in time: the request may have been carried out."""


class SubmitError(ProjectError):
    """A refused submission, or a run for which jobs.py can't do what was asked."""


class UnclearError(SubmitError):
    """A job is queued that should not be, or may be.

    Args:
        job_lost: whether its id is unknown because the scheduler's answer was lost.
        exit_code: `INTERRUPTED` after Ctrl-C.
    """

    def __init__(self, message: str, job_lost: bool = True, exit_code: int = REFUSED) -> None:
        self.job_lost, self.exit_code = job_lost, exit_code
        super().__init__(message)

    def adding(self, sentence: str) -> "UnclearError":
        """The same error with one more sentence."""
        return UnclearError(f"{self} {sentence}", self.job_lost, self.exit_code)


class Interrupted(SubmitError):
    """Ctrl-C during a submission, which was undone."""

    exit_code = INTERRUPTED


class NotFiniteError(ProjectError):
    """The loss is not a number any more, and `trainer.detect_nan=stop`."""


class RanksDifferError(ProjectError):
    """Ranks, or devices, that should have the same weights have different ones."""


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its causes and the members of groups, each once: user code can make them a cycle."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            members = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
            waiting += [*reversed(members), one.__context__, one.__cause__]


class SignalsAsErrors:
    """Raises a RuntimeError for exceptions of user code that a caller takes for the end of an epoch or of the process.

    Args:
        kinds: further exceptions of that meaning, such as those of a framework.
    """

    def __init__(self, *kinds: type[BaseException]) -> None:
        ends = (StopIteration, StopAsyncIteration, SystemExit, KeyboardInterrupt, GeneratorExit)
        self.kinds: tuple[type[BaseException], ...] = (*ends, *kinds)

    def __enter__(self) -> None:
        """Nothing is prepared."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """A contextmanager would let a StopIteration pass."""
        if isinstance(error, self.kinds) and not (isinstance(error, KeyboardInterrupt) and interrupted()):
            raise user_error(error) from error


def user_error(error: BaseException) -> RuntimeError:
    """Return the error for an exception that has another meaning than an error, raised in user code."""
    return RuntimeError(
        f"user code raised {type(error).__name__}, which is an error here: see the lines above."
    )


def interrupted() -> bool:
    """Whether Ctrl-C was typed: `train_anywhere.training.stop.Stop`, which handles SIGINT, remembers it."""
    handler = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    return getattr(handler, "requested", None) == "SIGINT"
