"""What a rank that fails leaves in the log: of a cause the traceback, once; of a consequence a sentence, and the rest in RUN/debug."""

import os
import re
import sys
import threading
import traceback
import zlib
from contextlib import suppress
from pathlib import Path

from train_anywhere.distributed.network.addresses import node_name
from train_anywhere.distributed.network.lost_rank import lost_rank
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import LostRankError, NotFiniteError, ProjectError
from train_anywhere.files.ordinary import open_file
from train_anywhere.runs.debug import CAUSE, NODE, first, keep
from train_anywhere.runs.folder import RunDir


def tell(run: RunDir, topology: Topology, error: BaseException) -> None:
    """Print why this rank fails."""
    me = f"rank {topology.rank} of {topology.world_size}"
    if isinstance(error, KeyboardInterrupt):
        say("interrupted.")
    elif isinstance(error, LostRankError):
        _tell_consequence(run, topology, error, f"error: {error}")
    elif isinstance(error, NotFiniteError) and topology.rank:
        return  # all ranks know the same metrics: rank 0 says it
    elif isinstance(error, ProjectError):
        if topology.world_size > 1:
            first(run, CAUSE, f"{me}: {error}")
        say(f"error: {error}")
    elif why := lost_rank(error):
        said = f"error: {me} stops: the connection to another rank was lost ({why})."
        _tell_consequence(run, topology, error, said)
    elif topology.world_size > 1 and (other := first(run, _place(error), me)) != me:
        leave_out(run, topology, error, f"error: {me} failed where {other} did ({_last_line(error)}).")
    else:
        if topology.world_size > 1:
            first(run, CAUSE, f"{me} on {node_name()}: {_last_line(error)}")
            first(run, NODE, node_name())
        traceback.print_exception(error)


def say(sentence: str) -> None:
    """Print it to the log."""
    print(sentence, file=sys.stderr, flush=True)


def leave_out(run: RunDir, topology: Topology, error: BaseException, sentence: str = "") -> Path | None:
    """Keep the traceback of an error for RUN/debug, and say a sentence in its place. Where no disk takes it, it is printed.

    Returns:
        The file that has it.
    """
    text = "".join(traceback.format_exception(error))
    file = keep(run, f"rank-{topology.rank}", text)
    details = f" Details: {file}" if file else ""
    if sentence:
        say(f"{sentence}{details}")
    if not file:
        say(text)
    return file


def _tell_consequence(run: RunDir, topology: Topology, error: BaseException, sentence: str) -> None:
    """What libraries say from here on, while the process ends, is a consequence too."""
    file = leave_out(run, topology, error, sentence)
    if file:
        with suppress(OSError), open_file(file, "ab") as log:
            os.dup2(log.fileno(), 2)


def _place(error: BaseException) -> str:
    """A word for the kind of an error and the way to it in the code, alike in all ranks that go this way."""
    lines = re.findall(r'^ *File ".*$', "".join(traceback.format_exception(error)), re.MULTILINE)
    return f"{type(error).__name__}-{zlib.crc32(chr(10).join(lines).encode()):08x}"


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def watch_threads(run: RunDir, topology: Topology) -> None:
    """A thread that hands its error on to whoever uses it, as TensorBoard's writer does, says a sentence instead of a traceback."""

    def hook(failed: threading.ExceptHookArgs) -> None:
        error = getattr(failed.thread, "exception", None)
        if isinstance(error, BaseException) and error is failed.exc_value:
            leave_out(run, topology, error, f"A thread ended: {_last_line(error)}.")
        else:
            threading.__excepthook__(failed)

    threading.excepthook = hook
