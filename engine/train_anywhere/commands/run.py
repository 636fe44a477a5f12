"""Run any program here or on a cluster.

python src/run.py -- script.py --epochs 3                                   # run here
python src/run.py cluster=neuron trainer.nodes=2 -- script.py --epochs 3    # submit a job and return at once
python src/run.py on=neuron trainer.nodes=2 -- script.py                    # on a host of configs/hosts/, over ssh
python src/run.py cluster=neuron launch=torchrun dry_run=true -- script.py  # show the job
python src/run.py program.folder=../nanoGPT -- train.py                     # in its own folder
python src/run.py -- -m package.train                                       # a module, or a command: -- accelerate launch train.py
python src/run.py -m 'args.lr=0.1,0.01' -- script.py --lr {args.lr}         # a sweep

Before `--` are keys of the job, as for src/train.py: cluster=, cluster.*, container=, trainer.nodes, trainer.devices, launch, name, ...
After it are a script, module or command and its arguments, which it gets as they are: docs/how-to/any-program.md.
Exit codes: 0 done or submitted, 2 refused (nothing was written), 75 stopped by a signal, 130 after Ctrl-C, else the program's.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser

from train_anywhere.commands.elsewhere import here_or_there
from train_anywhere.config.checks.program import is_file
from train_anywhere.config.command.compose import compose, quote_value
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.files import ROOT
from train_anywhere.files.root import refuse_deleted_folder
from train_anywhere.launch.command import HELP, run_command
from train_anywhere.launch.exits import leave
from train_anywhere.plugins import SEARCH_OPTIONS
from train_anywhere.plugins.launchers import print_sweep
from train_anywhere.plugins.optuna import refuse_without_optuna
from train_anywhere.plugins.product import list_members
from train_anywhere.program.named_program import (
    FIXED,
    command_problems,
    find_program,
    prepare_words,
    split_command,
    split_words,
    unused_key_problems,
)
from train_anywhere.runs.folder import open_run
from train_anywhere.runs.reopen.resume import load_saved_overrides
from train_anywhere.runs.summary import is_program
from train_anywhere.slurm.presets import resolve_current
from train_anywhere.slurm.submission.prepare import start
from train_anywhere.slurm.submission.snapshot import missing_problem
from train_anywhere.training.preflight import CHECKS as TRAINING

FOLDER = "program.folder="
SEARCH = "hydra/sweeper=optuna"


def main() -> int:
    """Run the program here, or submit it; return the exit code."""
    words, named = split_command(sys.argv[1:])
    if HELP & {*words}:
        print((__doc__ or "").strip())
        return 0
    refuse_deleted_folder()
    # a refusal lists all problems of these words, as those of a training
    sys.argv[1:] = [word for word in words if not word.startswith(("args.", "checkpoint.mo"))]
    typed, sweep = split_words(words)
    search = [word for word in typed if word.startswith("hydra")]
    typed = [word for word in typed if word not in search]
    saved = load_saved_overrides(typed)
    problems = unused_key_problems(typed)
    named_run = any(word.startswith("resume=") for word in typed)
    resumed = compose([*map(quote_value, typed)])["resume"] if named_run else None
    if resumed and not is_program(open_run(resumed)):
        problems.append(f"{resumed} is a training: python src/train.py resume={shlex.quote(str(resumed))}")
    program: dict[str, Any] = {}
    folders = [word.removeprefix(FOLDER).strip("'\"") for word in [*saved, *typed] if word.startswith(FOLDER)]
    try:
        program = find_program(named, folders[-1] if folders else None) if named or not resumed else {}
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(*problems)
    words = prepare_words(
        [*saved, *(resolve_current(typed) if "cluster=current" in typed else typed)],
        program.get("command", ()),
    )
    if sweep:
        return _sweep(words, search, program)
    tree = _compose(words, program)
    if tree["cluster"].get("scheduler") == "none":
        from train_anywhere.launch.local_run import start as start_here  # a submission does not need it

        return start_here(tree, words, CHECKS)
    start([tree], [words], *CHECKS[:2])
    return 0


def _compose(words: Sequence[str], program: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of one run of the program; an empty one is that of the resumed run."""
    tree = compose([*words, *FIXED])
    here = tree["cluster"].get("scheduler") == "none"
    if program and here and (problems := command_problems(program["command"])):
        raise ConfigError(*problems)
    tree["program"] |= program
    return tree


def _sweep(words: Sequence[str], search: Sequence[str], program: Mapping[str, Any]) -> int:
    """Run or submit all members of a sweep, or the trials of a search."""
    parser = OverridesParser.create()
    overrides = parser.parse_overrides([*words])
    clusters = [o for o in overrides if o.key_or_group == "cluster"]
    several = any(o.is_sweep_override() for o in clusters)  # `start` refuses it
    one = [] if several else [str(o.input_line) for o in clusters]
    submits = several or compose(one)["cluster"].get("scheduler") != "none"
    if SEARCH in search:
        refuse_without_optuna()
        from train_anywhere.search.loop import search as run_search  # a sweep does not need Optuna

        given = parser.parse_overrides([word for word in search if word != SEARCH])
        options = SEARCH_OPTIONS | {o.key_or_group.removeprefix("hydra.sweeper."): o.value() for o in given}
        added = parser.parse_overrides([f"{key}={value}" for key, value in options.pop("params").items()])
        run_search([*added, *overrides], options, lambda member: _compose(member, program), CHECKS, submits)
        return 0
    members = list_members(overrides)
    trees = [_compose(member, program) for member in members]
    if submits:
        results = start(trees, members, *CHECKS[:2])
        if failed := [one for one in results if isinstance(one, Exception)]:
            raise failed[0]
    else:
        from train_anywhere.launch.local_run import run_all  # a submission does not need it

        print_sweep(run_all(trees, members, CHECKS))
    return 0


def job_problems(config: Config, devices: int, look: bool) -> list[str]:
    """Return a message if a job would not have the program; takes the place of the check of a data set."""
    program, c = config.program, config.cluster
    if not program:
        return []
    other = config.container.name != "none" or c.conda or c.venv or c.modules or c.setup
    problems = [] if other else command_problems(program.command)
    for name in (program.folder, program.command[0] if is_file(program.command[0]) else None):
        if not name:
            continue
        top = (
            Path(program.copied) if program.copied and (ROOT / name).is_relative_to(program.copied) else ROOT
        )
        if (ROOT / name).is_relative_to(top):
            problems += missing_problem(os.path.relpath(ROOT / name, top), config.paths.results, top)
    return problems


CHECKS = TRAINING._replace(problems=job_problems)
"""The checks of a program."""


def run() -> NoReturn:
    """Run the command and exit with its code; print one message if it is refused."""
    leave(lambda: here_or_there("src/run.py", lambda: run_command(main)))
