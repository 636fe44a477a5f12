"""Run any program of this project here or on a cluster.

python src/run.py -- script.py --epochs 3                                   # run here
python src/run.py cluster=neuron trainer.nodes=2 -- script.py --epochs 3    # submit a job and return at once
python src/run.py cluster=neuron launch=torchrun dry_run=true -- script.py  # show the job

Before `--` are keys of the job, as for src/train.py: cluster=, cluster.*, container=, trainer.nodes, trainer.devices, launch, name, ...
After it are a script of this project and its arguments, which it gets as they are: docs/how-to/any-program.md.
Exit codes: 0 done or submitted, 2 refused (nothing was written), 75 stopped by a signal, 130 after Ctrl-C, else the program's.
"""

import shlex
import sys
from typing import NoReturn

from train_anywhere.config.command.compose import compose, quote_value
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.files.typed_paths import refuse_deleted_folder
from train_anywhere.launch.command import HELP, run_command
from train_anywhere.launch.exits import leave
from train_anywhere.launch.preflight import refuse_unreadable
from train_anywhere.program.named_program import (
    FIXED,
    find_program,
    prepare_words,
    refuse_flags,
    split_command,
    unused_key_problems,
)
from train_anywhere.runs.folder import open_run
from train_anywhere.runs.reopen.resume import load_saved_overrides
from train_anywhere.runs.summary import is_program
from train_anywhere.slurm.presets import resolve_current
from train_anywhere.slurm.submission.prepare import start
from train_anywhere.slurm.submission.snapshot import missing_problem


def main() -> int:
    """Run the program here, or submit it; return the exit code."""
    words, named = split_command(sys.argv[1:])
    if HELP & {*words}:
        print((__doc__ or "").strip())
        return 0
    refuse_deleted_folder()
    sys.argv[1:] = words  # a refusal lists all problems of these words
    typed = refuse_flags(words)
    saved = load_saved_overrides(typed)
    problems = unused_key_problems(typed)
    named_run = any(word.startswith("resume=") for word in typed)
    resumed = compose([*map(quote_value, typed)])["resume"] if named_run else None
    if resumed and not is_program(open_run(resumed)):
        problems.append(f"{resumed} is a training: python src/train.py resume={shlex.quote(str(resumed))}")
    program: list[str] = []
    try:
        program = find_program(named) if named or not resumed else []
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(*problems)
    words = prepare_words(
        [*saved, *(resolve_current(typed) if "cluster=current" in typed else typed)], program
    )
    tree = compose([*words, *FIXED])
    if program:
        tree["program"] = program
    if tree["cluster"].get("scheduler") == "none":
        from train_anywhere.launch.local_run import start as start_here  # a submission does not need it

        return start_here(tree, words)
    start([tree], [words], _snapshot_problems, refuse_unreadable)
    return 0


def _snapshot_problems(config: Config, devices: int, look: bool) -> list[str]:
    """Return a message if the snapshot of a job would not have the script; takes the place of the check of a data set."""
    return missing_problem(config.program[0], config.paths.results) if config.program else []


def run() -> NoReturn:
    """Run the command and exit with its code; print one message if it is refused."""
    leave(lambda: run_command(main))
