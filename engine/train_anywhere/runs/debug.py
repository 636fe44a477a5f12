"""RUN/debug: what the log leaves out, whole, because a sentence in the log says it.

A file for each writer: the nodes of a job can't append to one file of a network disk. Its name begins with the start of the ranks
that it is of: the job (`local` on this machine), and a number of that start.
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
"""What `first` is asked for by a rank that fails for a reason of its own: who was the first to."""

NODE = "node"
"""The same: on which node that was."""


def keep(run: RunDir, writer: str, text: str) -> Path | None:
    """Append `text` to the debug file of a writer.

    Returns:
        The file: in the run folder, or where that refuses it in a temporary one. None: the caller has to print the text.
    """
    content = f"{now()}\n{text.rstrip()}\n\n".encode(errors="backslashreplace")
    file = run.debug / f"{start_of_ranks()}-{writer}.txt"
    with suppress(OSError):
        make_folder(run.debug)
        _append(open_file(file, "ab"), content)
        return file
    with suppress(OSError):
        number, name = tempfile.mkstemp(".txt", f"debug-{run.id}-{writer}-")
        _append(FileIO(number, "ab"), content)
        return Path(name)
    return None


def first(run: RunDir, what: str, writer: str) -> str:
    """Whoever was the first of this start of the ranks to ask for `what`, a word; `writer` itself if it is, or if a disk refuses."""
    file = run.debug / f"{start_of_ranks()}-{what}.txt"
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


def named(code: int) -> str:
    """An exit code as shells count (128 + n for signal n), or the name of the signal that it means."""
    number = code - 128
    return f"signal {signal.Signals(number).name}" if number in set(signal.Signals) else f"exit code {code}"


def start_of_ranks(environ: Mapping[str, str] = os.environ) -> str:
    """Names this start of the ranks, alike in all of them: `local-40961`, `12-1795392794`."""
    number = environ.get(STARTED) or environ.get("MASTER_PORT") or os.getpid()
    return f"{running_job(environ) or 'local'}-{number}"


def _append(file: FileIO, content: bytes) -> None:
    """Write all of it to an open file, and close it. Raises OSError."""
    with file:
        while content:
            content = content[file.write(content) :]
