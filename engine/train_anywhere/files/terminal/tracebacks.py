"""Tracebacks of errors in user code, without the frames of the engine and of libraries around it."""

import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from train_anywhere.files import ENGINE, ROOT


def is_user_code(path: str) -> bool:
    """Return whether a file is neither the engine's, nor a library's, nor a program of the project such as src/train.py."""
    libraries = (str(ENGINE / "train_anywhere"), sysconfig.get_path("stdlib"), "<")
    packages = {"site-packages", "dist-packages"} & {*Path(path).parts}
    return Path(path).parent != ROOT / "src" and not path.startswith(libraries) and not packages


def user_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Return the innermost line of the traceback that is user code; None if there is none."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return next((frame for frame in frames if is_user_code(frame.filename)), None)


def format_short(error: BaseException) -> tuple[str, int]:
    """Return a traceback from the first to the last line of user code and the line that raised, and the number of frames left out.

    The causes of the error are shortened in the same way; one without user code is kept as it is.
    """
    whole, left_out = traceback.TracebackException.from_exception(error), 0
    for one in _chain(whole):
        users = [at for at, frame in enumerate(one.stack) if is_user_code(frame.filename)]
        if users:
            kept = [*one.stack[users[0] : users[-1] + 1], *one.stack[users[-1] + 1 :][-1:]]
            left_out += len(one.stack) - len(kept)
            one.stack[:] = kept
    return "".join(whole.format()), left_out


def _chain(error: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Yield an error, those that it was raised from, and those of a group."""
    yield error
    for other in (error.__cause__, error.__context__, *(error.exceptions or ())):
        if other:
            yield from _chain(other)
