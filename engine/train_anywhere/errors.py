"""All errors that a user can cause, in one tree below `ProjectError`.

The message is one sentence: what is wrong, why, what to type instead. `src/train.py` prints these without a traceback. Anything else that
escapes is a bug and keeps its traceback.
"""

import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal, Self

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "ProjectError",
    "SchedulerError",
    "SubmitError",
]

REFUSED = 2
"""Exit code of a refused request: one message was printed and nothing was written."""

NOT_FINITE = 3
"""Exit code of a run that finished with a loss of nan or inf."""

STOPPED = 75
"""Exit code of a rank that saved a checkpoint and stopped after a signal: EX_TEMPFAIL of sysexits.h, "try again later"."""

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as in shells."""

UNKNOWN_REASON = "the request was refused for an unknown reason: please report the command."
"""Message for an empty list of problems, so that no refusal is a bare `error:`."""


def listed(values: Iterable[object], most: int = 6) -> str:
    """Return values for a message, separated by commas: the first ones, and the number of the others."""
    shown = [str(value) for value in values]
    return ", ".join(shown[:most]) + (f" and {len(shown) - most:,} more" if len(shown) > most else "")


NO_KEY = "is not a key of the configuration"


class Problem(str):
    """A message about one key, which says what is wrong with it.

    Attributes:
        kind: an unknown `key`, an unknown `argument` of a target, or a `value` that is not allowed.
        value: the value, if `kind` is `value`.
    """

    kind: Literal["key", "argument", "value"]
    key: str
    value: str

    def __new__(cls, text: str, kind: Literal["key", "argument", "value"], key: str, value: str = "") -> Self:
        """Return the message `text`."""
        problem = super().__new__(cls, text)
        problem.kind, problem.key, problem.value = kind, key, value
        return problem


class ProjectError(Exception):
    """Root of the tree. Each entry script catches it once and exits with `exit_code`."""

    exit_code = REFUSED


class ConfigError(ProjectError):
    """An invalid configuration, with all problems at once."""

    def __init__(self, *problems: str) -> None:
        self.problems = [p for p in problems if p.strip()] or [UNKNOWN_REASON]
        many = len(self.problems) > 1
        head = f"{len(self.problems)} problems:\n" if many else ""
        ends = Counter(
            f" Source:{end}" for _, source, end in (p.partition(" Source:") for p in self.problems) if source
        )
        shared = [end for end, count in ends.items() if count > 1]  # printed once, after the problems
        shown = [
            p.removesuffix(next((end for end in shared if p.endswith(end)), "\0")) for p in self.problems
        ]
        lines = [f"  - {p}" if many else p for p in shown]
        super().__init__(head + "\n".join([*lines, *(f"    {end.strip()}" for end in shared)]))


class DataError(ProjectError):
    """A data set that is missing, damaged or unsuitable for the configuration."""


class CheckpointError(ProjectError):
    """A checkpoint or run folder that can't be written, read or resumed from."""


class TopologyError(ProjectError):
    """An environment that does not define the rank of this process."""


class LostRankError(ProjectError):
    """Another rank ended or can't be reached; its error is the cause."""


class SchedulerError(ProjectError):
    """The scheduler can't be reached, so the state of its jobs is unknown."""


class NoAnswerError(SchedulerError):
    """The scheduler did not answer in time: the request may have been executed."""


class SubmitError(ProjectError):
    """A refused submission, or a run that jobs.py can't handle as requested."""


class UnclearError(SubmitError):
    """A job is, or may be, queued although its submission failed.

    Args:
        message: one sentence.
        job_lost: whether its id is unknown because the scheduler's answer was lost.
        exit_code: `INTERRUPTED` after Ctrl-C.
    """

    def __init__(self, message: str, job_lost: bool = True, exit_code: int = REFUSED) -> None:
        self.job_lost, self.exit_code = job_lost, exit_code
        super().__init__(message)

    def add_sentence(self, sentence: str) -> "UnclearError":
        """Return the same error with one more sentence."""
        return UnclearError(f"{self} {sentence}", self.job_lost, self.exit_code)


class SubmitInterrupted(SubmitError):
    """Ctrl-C during a submission, which was undone, or while its jobs were awaited."""

    exit_code = INTERRUPTED


class NotFiniteError(ProjectError):
    """The loss is nan or inf, and `trainer.detect_nan=stop`."""


class RanksDifferError(ProjectError):
    """Ranks or devices have different weights but should have the same ones."""


def iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its causes and members of groups, each once: there may be a cycle."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            members = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
            waiting += [*reversed(members), one.__context__, one.__cause__]


class SignalsAsErrors:
    """Context that turns exceptions of user code with a meaning for callers into a RuntimeError.

    A StopIteration would be the end of an epoch, a SystemExit that of the process.

    Args:
        *kinds: more exceptions with such a meaning, for example of a framework.
    """

    def __init__(self, *kinds: type[BaseException]) -> None:
        ends = (StopIteration, StopAsyncIteration, SystemExit, KeyboardInterrupt, GeneratorExit)
        self.kinds: tuple[type[BaseException], ...] = (*ends, *kinds)

    def __enter__(self) -> None:
        """Enter the context."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise the RuntimeError. `contextlib.contextmanager` would pass a StopIteration on."""
        handler = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
        # as `train_anywhere.job.rank_process.Stop` records
        ctrl_c = isinstance(error, KeyboardInterrupt) and getattr(handler, "requested", None) == "SIGINT"
        if isinstance(error, self.kinds) and not ctrl_c:
            raise user_error(error) from error


def user_error(error: BaseException) -> RuntimeError:
    """Return the error for an exception of user code that would otherwise mean a normal end."""
    return RuntimeError(
        f"user code raised {type(error).__name__}, which is an error here: see the lines above."
    )
