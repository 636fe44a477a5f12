"""Run torchrun or horovodrun in a job: `... RUN MODULE WORDS...`.

It runs `python -m MODULE WORDS...`.

If a rank exits with another code than 0, these launchers print a long traceback and exit with a code of their choice. Here the traceback
goes to RUN/debug, the log gets one sentence, and the exit code is the rank's. Other errors of a launcher are printed unchanged.
"""

import os
import re
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from train_anywhere.distributed.discover import hosts_by_rank
from train_anywhere.distributed.network import addresses
from train_anywhere.distributed.network.addresses import lost_rank
from train_anywhere.errors import NOT_FINITE
from train_anywhere.monitor.ranks import short
from train_anywhere.runs.attempts import append_debug, describe_exit_code
from train_anywhere.runs.folder import RunDir


def main(arguments: Sequence[str]) -> int:
    """Run the launcher. Return 0, or the exit code of the first rank that failed."""
    run, module, *words = arguments
    sys.argv = [module, *words]
    # torchrun's store logs a page for each lost peer, before torchrun itself reports it
    if "TORCH_CPP_LOG_LEVEL" not in os.environ:
        os.environ |= {"TORCH_CPP_LOG_LEVEL": "ERROR", "TRAIN_ADDED": "TORCH_CPP_LOG_LEVEL"}
    if module == "torch.distributed.run":
        # torchrun must outlive its ranks at a TERM, see the batch script; this is its option --signals-to-handle
        os.environ.setdefault("PET_SIGNALS_TO_HANDLE", "SIGINT,SIGHUP,SIGQUIT")
        sys.argv = [module, *add_rendezvous(words, os.environ)]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception as error:
        found = describe_rank_exit(error)
        if found is None:
            raise
        code, sentence = found
        text = traceback.format_exc()
        file = append_debug(RunDir(Path(run)), f"launcher-{socket.gethostname()}", text)
        if not file:
            traceback.print_exc()
        elif code != NOT_FINITE:  # that run is complete and has printed its warning
            print(f"{sentence} Details: {file}", file=sys.stderr, flush=True)
        return code
    return 0


def add_rendezvous(words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return torchrun's arguments with the ranks of this node and a meeting address.

    The address is one that all nodes can reach, and the rendezvous host is node 0 of the job step. torchrun would use the host name and
    its addresses, which may differ from Slurm's or be loopback.
    """
    if not any(word.startswith("--nnodes=") for word in words):
        return [*words]
    hosts = [short(host) for host in hosts_by_rank(environ["TRAIN_HOSTS"]).values()]
    at = f"{addresses.address_of(environ['MASTER_ADDR'])}:{environ['MASTER_PORT']}"
    return [
        f"--nproc-per-node={hosts.count(short(environ['SLURMD_NODENAME']))}",
        "--rdzv-backend=c10d",
        f"--rdzv-id={environ['SLURM_JOB_ID']}",
        f"--rdzv-endpoint={at}",
        f"--rdzv-conf=is_host={int(environ['SLURM_NODEID'] == '0')}",
        f"--local-addr={addresses.address_of(addresses.node_name())}",
        *words,
    ]


def describe_rank_exit(error: Exception) -> tuple[int, str] | None:
    """Return code and message for an error that reports a rank's exit, else None."""
    if type(error).__module__.startswith("torch.distributed.elastic."):
        if number := getattr(error, "sigval", None):
            return 128 + number, f"torchrun was stopped by {signal.Signals(number).name}."
        if failures := getattr(error, "failures", None):
            rank = min(failures, key=lambda r: failures[r].timestamp)
            code = to_shell_code(failures[rank].exitcode)
            return code, f"rank {rank} ended with {describe_exit_code(code)}; the other ranks were stopped."
        if error.__cause__ and (why := lost_rank(error.__cause__)):
            return 1, f"torchrun of this node lost the connection to that of the first one ({why})."
        return None
    if found := re.search(r"Horovod detected that .*\nProcess name: (\d+)\nExit code: (\d+)", str(error)):
        code = int(found[2])
        return code, f"rank {found[1]} ended with {describe_exit_code(code)}; the other ranks were stopped."
    return None


def to_shell_code(code: int) -> int:
    """Convert an exit code of `subprocess` to a shell's: 128 + n for signal n."""
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
