"""Another launcher as a job starts it: `python -m train_anywhere.launch.launcher RUN MODULE WORDS...` runs
`python -m MODULE WORDS...`.

When a rank has ended with any code but 0 it prints a page of its own code, and ends with a code of its own. Here that page goes to
RUN/debug, the log gets a sentence, and the code is the rank's. Any other error of a launcher is printed as it is.
"""

import os
import re
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from train_anywhere.distributed.network import addresses
from train_anywhere.distributed.network.lost_rank import lost_rank
from train_anywhere.errors import NOT_FINITE
from train_anywhere.runs.debug import keep, named
from train_anywhere.runs.folder import RunDir


def main(arguments: Sequence[str]) -> int:
    """Run the launcher; returns 0, or the exit code of the first rank that failed."""
    run, module, *words = arguments
    sys.argv = [module, *words]
    # torchrun's store writes a page to the log about each peer that is gone, before torchrun itself says so
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if "SLURM_NODEID" in os.environ and module == "torch.distributed.run":
        sys.argv = [module, *meeting_at_the_first_node(words, os.environ["SLURM_NODEID"])]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception as error:
        ended = how(error)
        if ended is None:
            raise
        code, sentence = ended
        text = traceback.format_exc()
        file = keep(RunDir(Path(run)), f"launcher-{socket.gethostname()}", text)
        if not file:
            traceback.print_exc()
        elif code != NOT_FINITE:  # of a run that is done, and has said so
            print(f"{sentence} Details: {file}", file=sys.stderr, flush=True)
        return code
    return 0


def meeting_at_the_first_node(words: Sequence[str], node: str) -> list[str]:
    """Return torchrun's arguments with addresses that all nodes can reach, and node 0 of the step as the host of the endpoint.

    torchrun itself goes by the host's own name and its addresses, which may be others than Slurm's, or loopback.
    """
    found = [re.fullmatch("(--rdzv-endpoint=)(.*)(:[0-9]+)", word) for word in words]
    known = [
        f"{m[1]}{addresses.address_of(m[2])}{m[3]}" if m else w for m, w in zip(found, words, strict=True)
    ]
    own = [
        f"--rdzv-conf=is_host={int(node == '0')}",
        f"--local-addr={addresses.address_of(addresses.node_name())}",
    ]
    return [*own, *known] if any(found) else known


def how(error: Exception) -> tuple[int, str] | None:
    """Exit code and sentence for the error with which a launcher says how a rank ended; None for any other error."""
    if type(error).__module__.startswith("torch.distributed.elastic."):
        if told := getattr(error, "sigval", None):
            return 128 + told, f"torchrun was stopped by {signal.Signals(told).name}."
        if failures := getattr(error, "failures", None):
            rank = min(failures, key=lambda r: failures[r].timestamp)
            code = failures[rank].exitcode
            return of_shell(
                code
            ), f"rank {rank} ended with {named(of_shell(code))}; the other ranks were stopped."
        if error.__cause__ and (why := lost_rank(error.__cause__)):
            return 1, f"torchrun of this node lost the connection to that of the first one ({why})."
        return None
    if found := re.search(r"Horovod detected that .*\nProcess name: (\d+)\nExit code: (\d+)", str(error)):
        code = int(found[2])
        return code, f"rank {found[1]} ended with {named(code)}; the other ranks were stopped."
    return None


def of_shell(code: int) -> int:
    """An exit code as shells count: 128 + n for signal n."""
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
