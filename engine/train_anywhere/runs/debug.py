"""RUN/debug: full tracebacks and output, of which the log has only one sentence or the lines of user code.

Each writer has its own file, because several nodes can't append to one file on a network disk. File names start with `launch_id`.
"""

import os
import signal
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path

from train_anywhere.files.atomic import read_text
from train_anywhere.files.ordinary import make_folder, open_file
from train_anywhere.runs.attempts import STARTED, running_job
from train_anywhere.runs.folder import RunDir, now

CAUSE = "cause"
"""What `claim_first` is called with by a rank that fails for its own reason, not because another rank failed."""

NODE = "node"
"""The same, for the name of that rank's node."""


def append_debug(run: RunDir, writer: str, text: str) -> Path | None:
    """Append `text` to the debug file of a writer.

    Returns:
        The file. It is a temporary one if the run folder can't be written. None: no file could be written, and the caller prints `text`.
    """
    content = f"{now()}\n{text.rstrip()}\n\n".encode(errors="backslashreplace")
    file = run.debug / f"{launch_id()}-{writer}.txt"
    with suppress(OSError):
        make_folder(run.debug)
        _append(open_file(file, "ab"), content)
        return file
    with suppress(OSError):
        number, name = tempfile.mkstemp(".txt", f"debug-{run.id}-{writer}-")
        _append(FileIO(number, "ab"), content)
        return Path(name)
    return None


def claim_first(run: RunDir, what: str, writer: str) -> str:
    """Return the first writer of this launch that claimed `what`; `writer` if it is the first or the disk can't be written."""
    file = run.debug / f"{launch_id()}-{what}.txt"
    try:
        make_folder(run.debug)
        new = FileIO(file, "x")
    except FileExistsError:
        with suppress(OSError):
            return read_text(file).strip() or "another one"
        return writer
    except OSError:
        return writer
    with suppress(OSError):
        _append(new, f"{writer}\n".encode())
    return writer


def read_claim(run: RunDir, what: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the writer of the launch with this environment that claimed `what`; empty if none did."""
    with suppress(OSError, UnicodeDecodeError):
        return read_text(run.debug / f"{launch_id(environ)}-{what}.txt").strip()
    return ""


def is_claimed(run: RunDir, what: str) -> bool:
    """Return whether a writer of this launch has called `claim_first`."""
    return (run.debug / f"{launch_id()}-{what}.txt").exists()


def describe_exit_code(code: int) -> str:
    """Describe an exit code of a shell, where 128 + n means signal n."""
    number = code - 128
    return f"signal {signal.Signals(number).name}" if number in set(signal.Signals) else f"exit code {code}"


def launch_id(environ: Mapping[str, str] = os.environ) -> str:
    """Return a name for this launch of the ranks, equal in all of them: job id (or `local`) and a number, `12-1795392794`."""
    number = environ.get(STARTED) or environ.get("MASTER_PORT") or os.getpid()
    return f"{running_job(environ) or 'local'}-{number}"


def _append(file: FileIO, content: bytes) -> None:
    """Write all of `content` to an open file and close it. Raises OSError."""
    with file:
        while content:
            content = content[file.write(content) :]
