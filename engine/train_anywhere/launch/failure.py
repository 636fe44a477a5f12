"""Log messages of a rank that fails: a short traceback, or one sentence."""

import os
import re
import shlex
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from train_anywhere.config.schema import Config
from train_anywhere.distributed.network.addresses import lost_rank, node_name
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import DataError, LostRankError, NotFiniteError, ProjectError, iterate_causes
from train_anywhere.files.atomic import open_file
from train_anywhere.files.copy_files import print_line
from train_anywhere.files.terminal.fit import fit, terminal_width
from train_anywhere.files.terminal.output import format_short
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.runs.attempts import CAUSE, NODE, append_debug, claim_first, read_claim
from train_anywhere.runs.facts import read_config
from train_anywhere.runs.folder import ATTEMPTS, RunDir
from train_anywhere.runs.reopen.resume import read_run_overrides
from train_anywhere.runs.summary import COLUMN, MOST_CHARACTERS, describe_error, display_path, resume_command

CAUSE_S = 2.0
"""Seconds to wait for the error of another rank, which may close its connections before it reports the error."""


def report_failure(run: RunDir, topology: Topology, error: BaseException, report: Sequence[str] = ()) -> None:
    """Print why this rank fails. `report` are lines about the report of the run."""
    me = f"rank {topology.rank} of {topology.world_size}"
    if isinstance(error, KeyboardInterrupt):
        print_line("interrupted.")
    elif is_consequence(error):
        why = f"{me} stops: the connection to another rank was lost ({lost_rank(error)})."
        sentence = f"error: {error if isinstance(error, LostRankError) else why}"
        if file := save_traceback(run, topology, error, sentence):
            # what libraries print from now on
            with suppress(OSError), open_file(file, "ab") as log:
                os.dup2(log.fileno(), 2)
    elif isinstance(error, NotFiniteError) and topology.rank:
        return  # all ranks have the same metrics, and rank 0 reports it
    elif isinstance(error, ProjectError):
        first = claim_first(run, CAUSE, f"{me}: {error}") if topology.world_size > 1 else me
        if first.startswith(me) or not first.endswith(f": {error}"):  # else another rank prints it
            print_line(f"error: {error}")
    else:
        # equal in all ranks that fail at the same place
        lines = re.findall(r'^ *File ".*$', "".join(traceback.format_exception(error)), re.MULTILINE)
        place = f"{type(error).__name__}-{zlib.crc32(chr(10).join(lines).encode()):08x}"
        if topology.world_size > 1 and (other := claim_first(run, place, me)) != me:
            sentence = f"error: {me} failed where {other} did ({_last_line(error)})."
            save_traceback(run, topology, error, sentence)
            return
        if topology.world_size > 1:
            claim_first(run, CAUSE, f"{me} on {node_name()}: {_last_line(error)}")
            claim_first(run, NODE, node_name())
        print_traceback(run, f"rank-{topology.rank}", error)
        print_line(closing_lines(run, error, report))


def closing_lines(run: RunDir, error: BaseException, report: Sequence[str] = ()) -> str:
    """Return the lines after a traceback: error, run folder, report, and how to resume."""
    saved = any(path.name.isdecimal() for path in run.checkpoints.glob("*"))
    rows = {"Failed": describe_error(error)}
    info, config = run.read_info(), read_config(run)
    memory = {"OutOfMemoryError", "ResourceExhaustedError"}
    exceeded = any(type(cause).__name__ in memory for cause in iterate_causes(error))
    if exceeded and info.get("own_workers") is None and "data" in config:
        batch, ranks = config["data"]["batch_size"], (info.get(ATTEMPTS) or [{}])[-1].get("devices") or 1
        now = config["trainer"].get("micro_batch") or batch
        if smaller := max((n for n in range(ranks, now // 2 + 1, ranks) if batch % n == 0), default=None):
            then = "computes each batch in parts, for the same gradient"
            rows["Memory"] = f"trainer.micro_batch={smaller} {then}"
    rows |= {"Run folder": display_path(run.path)}
    lines = [*(f"{name + ':':<{COLUMN}}{text}" for name, text in rows.items()), *report]
    then = resume_command(run) if saved else "start again: there is no checkpoint yet"
    lines.append(f"{'Next:':<{COLUMN}}correct it, then {then}")
    return "\n" + fit("\n".join(lines), terminal_width(sys.stderr), COLUMN)


def is_consequence(error: BaseException) -> bool:
    """Return whether this rank failed because it has lost the connection to another one."""
    return isinstance(error, LostRankError) or lost_rank(error) is not None


def wait_for_cause(run: RunDir, error: BaseException) -> str:
    """Return the error of the rank that failed first, if `error` is its consequence."""
    end = time.monotonic() + CAUSE_S
    while is_consequence(error) and time.monotonic() < end:
        if cause := read_claim(run, CAUSE):
            return one_line(cause[:MOST_CHARACTERS])
        time.sleep(0.1)
    return ""


def print_traceback(run: RunDir, writer: str, error: BaseException) -> None:
    """Print a traceback's lines of user code, and where the whole one is."""
    text, left_out = format_short(error)
    whole = "".join(traceback.format_exception(error))
    file = append_debug(run, writer, whole) if left_out else None
    print_line((text if file else whole).rstrip())
    if file:
        left = f"{left_out} frames of the engine and of libraries are left out"
        print_line(f"({left}; the whole traceback: {display_path(file)})")


def save_traceback(run: RunDir, topology: Topology, error: BaseException, sentence: str) -> Path | None:
    """Print `sentence` and return the file of the traceback; print it and return None if none can be written."""
    text = "".join(traceback.format_exception(error))
    file = append_debug(run, f"rank-{topology.rank}", text)
    print_line(f"{sentence}{f' Details: {file}' if file else ''}")
    if not file:
        print_line(text)
    return file


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def watch_threads(run: RunDir, topology: Topology) -> None:
    """Print one sentence for an error of a thread that stores it in `exception`."""

    def hook(failed: threading.ExceptHookArgs) -> None:
        error = getattr(failed.thread, "exception", None)
        if isinstance(error, BaseException) and error is failed.exc_value:
            save_traceback(run, topology, error, f"A thread ended: {_last_line(error)}.")
        else:
            threading.__excepthook__(failed)

    threading.excepthook = hook


CLIENTS = ("huggingface_hub", "urllib", "requests", "httpx", "httpcore")
"""Packages whose errors are those of a connection."""

LIBRARIES = (
    *("huggingface_hub", "transformers", "diffusers", "datasets", "peft", "timm", "torchvision"),
    *("sentence_transformers", "open_clip", "torch.hub", "keras.src.utils.file_utils"),
)
"""Packages and modules that download weights. A callback that reports to a server has none of them in its traceback."""

SENTENCES = re.compile(
    r"couldn't connect to|can ?not find the requested files|URL fetch failure|outgoing traffic has been disabled|offline mode",
    re.IGNORECASE,
)
"""Matches messages of libraries about files that are not in their caches."""


def missing_file_error(config: Config, run: RunDir, error: BaseException) -> DataError | None:
    """Return the error with the command that fetches the files."""
    offline = config.cluster.scheduler != "none" or os.environ.get("HF_HUB_OFFLINE") == "1"
    if (isinstance(error, ProjectError) and not error.__cause__) or not offline:
        return None
    causes, modules = [*iterate_causes(error)], set[str]()
    # the error, or a function that it came through, is of a library that downloads weights
    for cause in causes:
        frames = traceback.walk_tb(cause.__traceback__)
        modules |= {type(cause).__module__, *(str(frame.f_globals.get("__name__")) for frame, _ in frames)}
    found = [c for c in causes if type(c).__module__.partition(".")[0] in CLIENTS or SENTENCES.search(str(c))]
    if not found or not any(f"{m}.".startswith(f"{name}.") for m in modules for name in LIBRARIES):
        return None
    words: list[str] = []
    with suppress(ProjectError):
        words = read_run_overrides(run)
    why = (str(found[0]).strip().splitlines() or [type(found[0]).__name__])[0]
    return DataError(
        f"a file is not in the cache, and this job can't download it ({why.rstrip('.')}). Type on a login node, which has internet: "
        f"{shlex.join(['python', '-m', 'train_anywhere', 'fetch', *words])}; then resume the run."
    )
