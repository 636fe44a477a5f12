"""Every error a user can cause, in one tree.

    ProjectError            the message is one sentence for a person: what is wrong, why, what to do instead
    ├── ConfigError         a configuration that can't work; `problems` lists all of them
    ├── DataError           a data set that is missing, damaged or does not fit the configuration
    ├── CheckpointError     a checkpoint or run folder that can't be written, read or resumed from
    ├── TopologyError       the environment of this process does not say which rank it is
    ├── SubmitError         the scheduler is missing or refused the job
    └── NotFiniteError      the loss is not a number any more, and `trainer.detect_nan=stop`

`src/train.py` prints these without a traceback. Anything else that escapes is a bug and keeps its traceback.
"""

from collections.abc import Sequence

REFUSED = 2
"""Exit code of a request that was refused: one message was printed and nothing was written."""

NOT_FINITE = 3
"""Exit code of a run that went to its end with a loss that is not a number."""

STOPPED = 75
"""Exit code of a rank that a signal stopped after it had saved a checkpoint: sysexits.h's EX_TEMPFAIL, "try again later"."""

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as shells count."""


class ProjectError(Exception):
    """Root of the tree: caught once, at the top of each entry script, whose exit code is `exit_code`."""

    exit_code = REFUSED


class ConfigError(ProjectError):
    """All problems of a configuration at once.

    Args:
        problems: one sentence each.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        many = len(self.problems) > 1
        head = f"{len(self.problems)} problems:\n" if many else ""
        super().__init__(head + "\n".join(f"  - {p}" if many else p for p in self.problems))


class DataError(ProjectError):
    """A data set that is missing, damaged or does not fit the configuration."""


class CheckpointError(ProjectError):
    """A checkpoint or run folder that can't be written, read or resumed from."""


class TopologyError(ProjectError):
    """The environment of this process does not say which rank it is."""


class SubmitError(ProjectError):
    """The scheduler is missing or refused the job."""


class NotFiniteError(ProjectError):
    """The loss is not a number any more, and `trainer.detect_nan=stop`."""
