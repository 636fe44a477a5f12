r"""Supervise the ranks of a job. The batch script starts this, see `start.sh`.

    printf '%s\0' OPTIONS -- srun ... train.py | "$PYTHON" -I "$CODE/train_anywhere/job/__main__.py" RUN SIGNALS ANSWERS

SIGNALS is a pipe with the names of signals that the batch script got, ANSWERS one for what the script has to know: that this process
has begun, the process group of the launcher, and the job's exit code. Options and command are words of its input.
"""

import signal

for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):  # they come through the pipe
    signal.signal(number, signal.SIG_IGN)

import argparse  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

CODE = Path(__file__).parents[2]
"""The folder of the code snapshot."""


def main(words: list[str]) -> int:
    """Supervise a job, and return its exit code."""
    answers = open(int(words[2]), "w", buffering=1, closefd=False)  # noqa: SIM115
    print("began yes", file=answers)
    try:
        options = parse(words)
    except SystemExit as end:  # an option that an edited script has misspelled
        print(f"end {end.code}", file=answers)
        raise
    sys.path[:0] = [str(CODE)]
    from train_anywhere.job.batch_job import supervise_job
    from train_anywhere.job.packed_members import supervise_members

    if options.members and not options.not_started:
        code = supervise_members(options)
    else:
        code = supervise_job(options, lambda group: print(f"ranks {group}", file=answers))
    sys.stdout.flush()
    print(f"end {code}", file=answers)
    return code


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as 2-4,8."""
    spans = (part.partition("-") for part in text.split(","))
    return tuple(n for first, _, last in spans for n in range(int(first), int(last or first) + 1))


def parse(words: list[str]) -> argparse.Namespace:
    """Return the options. `batch_job.fill` replaces the placeholders of `command`."""
    parser = argparse.ArgumentParser(prog="supervise", allow_abbrev=False)
    add = parser.add_argument
    add("run", type=Path)
    add("signals", type=int)
    add("answers", type=int)
    add("--scheduler", choices=("slurm", "pbs"), required=True)
    add("--signal-seconds", type=int, default=300, help="time between Slurm's signal and the end")
    add("--requeue", action="store_true", help="requeue the job after a stop")
    add("--exclude", default="", help="nodes that a requeued job must not get, besides bad ones")
    add("--array", action="store_true", help="several members start at the same time")
    add("--members", type=int, help="members of a sweep that run at once in this job, from the one of RUN on")
    add("--last", type=int, default=0, help="number of the last member of the sweep")
    add("--slot", type=int, help="number of this member among them")
    add("--restarts", type=int, help="earlier starts of the job, which PBS does not count")
    add("--not-started", action="store_true", help="the environment of the ranks could not be set up")
    add("--died", type=int, help="exit code of a supervisor that was killed")
    add("--launcher", type=int, default=0, help="process group of its launcher")
    add("--launch", default="srun", help="what starts the ranks: srun, torchrun, mpirun, horovodrun")
    add("--ranks", type=int, default=1, help="ranks of each node")
    add("--uneven", type=int, help="ranks of all nodes, if Slurm decides how many each node gets")
    add("--cpus-per-task", type=int, default=1)
    add("--gpus", type=int, default=0, help="GPUs of all nodes, if they have different numbers")
    add("--fewest", type=int, help="the fewest nodes on which the job may continue")
    add("--counts", type=_numbers, default=(), help="the only numbers of nodes on which the ranks may start")
    add("--no-kill", action="store_true", help="it survives the loss of a node")
    add("--retries", type=int, help="restarts of the ranks after a failure")
    add("--program", action="store_true", help="the ranks run a program, see src/run.py")
    add("--monitor", action="store_true", help="start a monitor process on each node")
    add("--features", action="store_true", help="features of the run have something to do here")
    add("--python", default="python", help="Python of the ranks")
    add("--inside", default="", help="words before a command that run it in the container")
    add("--container", default="", help="options of srun that do the same")
    add("--export", default="", help="variables that cluster.setup exports, separated by commas")
    after = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:after])
    options.command = words[after + 1 :]
    return options


if __name__ == "__main__":
    given = [] if sys.argv[4:] else os.fsdecode(sys.stdin.buffer.read()).split("\0")[:-1]
    sys.exit(main([*sys.argv[1:], *given]))
