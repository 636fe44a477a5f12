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
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from train_anywhere.commands.elsewhere import here_or_there
from train_anywhere.commands.train import Starter
from train_anywhere.config.checks.program import is_file
from train_anywhere.config.command.command_line import split_flags, to_hydra_overrides
from train_anywhere.config.command.compose import compose, install_choice_loader
from train_anywhere.config.keys import flatten
from train_anywhere.config.paths import make_run_name
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, listed
from train_anywhere.files import ROOT
from train_anywhere.files.root import find_top, refuse_deleted_folder, resolve_as_typed
from train_anywhere.launch.command import HELP, run_command
from train_anywhere.launch.exits import leave
from train_anywhere.runs.folder import open_run
from train_anywhere.runs.reopen.resume import load_saved_overrides
from train_anywhere.runs.summary import is_program
from train_anywhere.slurm.submission.snapshot import missing_problem
from train_anywhere.training.preflight import CHECKS as TRAINING

SECTIONS = ("cluster", "container", "paths", "features", "program", "args")
"""Sections that a program has too."""

KEYS = (
    "name", "note", "launch", "wait", "after", "dry_run", "resume", "trust", "trainer.nodes", "trainer.devices", "trainer.total_devices",
    "trainer.accelerator", "trainer.detect_nan", "checkpoint.monitor", "checkpoint.mode", "checkpoint.local",
    "checkpoint.every_n_seconds", "monitor.sample_seconds", "monitor.serve", "monitor.serve_address", "monitor.dashboard",
    "monitor.hang", "monitor.hang_minutes", "monitor.idle", "monitor.report",
)  # fmt: skip
"""Other keys that a program has."""

FIXED = ("strategy=ddp",)
"""Choices of the training that give a program one rank per device, and any number of nodes."""


def find_program(program: Sequence[str], typed_folder: str | None = None) -> dict[str, Any]:
    """Return command, folder and copied of `config.schema.Program` for what follows `--`.

    Raises ConfigError: there is no such file, folder, module or command, or an argument is not UTF-8.
    """
    if not program:
        raise ConfigError(
            "no program is named: its script comes after --, such as: python src/run.py -- script.py --epochs 3."
        )
    if any(re.search("[\ud800-\udfff]", word) for word in program):
        raise ConfigError("an argument of the program is not UTF-8; rename the file that it names.")
    folder = resolve_as_typed(os.path.expanduser(typed_folder)) if typed_folder else None
    if folder and not folder.is_dir():
        raise ConfigError(f"program.folder={typed_folder} is not a folder.")
    name = program[0]
    places = [Path(os.path.abspath(folder or ""), name), Path(os.path.abspath(name))]
    path = next((resolve_as_typed(one) for one in places if one.is_file()), None)
    if path:
        name = _project_name(path)
        name = name if is_file(name) else f"./{name}"
    elif is_file(name):
        raise ConfigError(
            f"{name!r} is not a file; name a script or a command first, then its arguments: python src/run.py -- script.py --epochs 3."
        )
    outside = [top for one in (folder, path) if one and (top := _find_outside(one))]
    if len(outside) > 1 and not outside[1].is_relative_to(outside[0]):
        raise ConfigError(
            f"{path} is not below {outside[0]}, and a job copies one folder; name a script of that one."
        )
    found = {"command": [name, *program[1:]], "copied": str(outside[0]) if outside else None}
    return found | ({"folder": _project_name(folder)} if folder else {})


def _project_name(path: Path) -> str:
    """Return a path relative to the project, or as it is if it is not in the project."""
    pairs = ((path, ROOT), (path.resolve(), ROOT.resolve()))
    return next((str(one.relative_to(root)) for one, root in pairs if one.is_relative_to(root)), str(path))


def _find_outside(path: Path) -> Path | None:
    """Return the git repository or folder of what is not in the project, else None."""
    here = path if path.is_dir() else path.parent
    commands = [os.path.dirname(sys.executable), *os.environ.get("PATH", "").split(os.pathsep)]
    if not Path(_project_name(path)).is_absolute() or (path.is_file() and str(here) in commands):
        return None
    return find_top(here)


def command_problems(command: Sequence[str]) -> list[str]:
    """Return a message if the first word of a command can't be started."""
    name, here = command[0], str(Path(sys.executable).parent)
    path = os.pathsep.join([here, os.environ.get("PATH", os.defpath)])
    if is_file(name) or name == "-m" or shutil.which(name, path=path):
        return []
    return [
        f"{name!r} is neither a file nor a command of this environment; name a script or a command first, then its arguments: "
        "python src/run.py -- script.py --epochs 3."
    ]


def unused_key_problems(words: Sequence[str]) -> list[str]:
    """Return a message if there are keys that a training has and a program has not."""
    known = {"experiment", *(key.partition(".")[0] for key in flatten(compose([])))}
    keys = dict.fromkeys(word.lstrip("+~").partition("=")[0] for word in words)
    unused = [
        k for k in keys if k not in KEYS and (top := k.partition(".")[0]) in known and top not in SECTIONS
    ]
    about = "a key of a training means nothing for a program; pass the program's own arguments after --, or leave it out."
    return [f"{listed(unused)}: {about} Keys of a program: {listed((*SECTIONS, *KEYS))}."] if unused else []


def prepare_words(words: Sequence[str], program: Sequence[str]) -> list[str]:
    """Return the overrides in Hydra's notation, with the name of the run."""
    install_choice_loader()
    named = any(word.startswith(("name=", "resume=")) for word in words)
    if program and not named:
        # that of the script, module or command
        module = program[0] == "-m" and len(program) > 1
        word = program[1].rpartition(".")[2] if module else Path(program[0]).stem
        words = [f"name={make_run_name(word)}", *words]
    return to_hydra_overrides(words)


def main() -> int:
    """Run the program here, or submit it; return the exit code."""
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    words, named = sys.argv[1:at], sys.argv[at + 1 :]
    if HELP & {*words}:
        print((__doc__ or "").strip())
        return 0
    refuse_deleted_folder()
    # a refusal lists all problems of these words, as those of a training
    sys.argv[1:] = [word for word in words if not word.startswith("checkpoint.mo")]
    typed, flags = split_flags(words)
    if other := [flag for flag in flags if flag not in ("-m", "--multirun")]:
        raise ConfigError(
            f"{other[0]} is not a flag of src/run.py; arguments of the program come after --, such as: "
            "python src/run.py cluster=slurm -- script.py --epochs 3."
        )
    saved = load_saved_overrides(typed)
    problems = unused_key_problems(typed)
    named_run = any(word.startswith("resume=") for word in typed)
    resumed = compose(to_hydra_overrides(typed))["resume"] if named_run else None
    if resumed and not is_program(open_run(resumed)):
        problems.append(f"{resumed} is a training: python src/train.py resume={shlex.quote(str(resumed))}")
    program: dict[str, Any] = {}
    folders = [w.partition("=")[2].strip("'\"") for w in [*saved, *typed] if w.startswith("program.folder=")]
    try:
        program = find_program(named, folders[-1] if folders else None) if named or not resumed else {}
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(*problems)
    words = prepare_words([*saved, *typed], program.get("command", ()))
    fixed = compose(FIXED)["strategy"]

    def complete(tree: dict[str, Any]) -> dict[str, Any]:
        here = tree["cluster"].get("scheduler") == "none"
        if program and here and (problems := command_problems(program["command"])):
            raise ConfigError(*problems)
        return tree | {"program": tree["program"] | program, "strategy": fixed}

    Starter(CHECKS, [*words, *flags[:1]], complete).start_hydra()
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
        inside = program.copied and (ROOT / name).is_relative_to(program.copied)
        top = Path(str(program.copied)) if inside else ROOT
        if (ROOT / name).is_relative_to(top):
            problems += missing_problem(os.path.relpath(ROOT / name, top), config.paths.results, top)
    return problems


CHECKS = TRAINING._replace(problems=job_problems)
"""The checks of a program."""


def run() -> NoReturn:
    """Run the command and exit with its code; print one message if it is refused."""
    leave(lambda: here_or_there("src/run.py", lambda: run_command(main)))
