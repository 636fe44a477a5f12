"""The command line of `src/run.py`: keys of the job, then `--`, then a script and its arguments."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from train_anywhere.config.checks.program import program_problems
from train_anywhere.config.command.command_line import split_flags
from train_anywhere.config.command.compose import compose, install_choice_loader, quote_value
from train_anywhere.config.flat import flatten
from train_anywhere.errors import ConfigError
from train_anywhere.files import ROOT
from train_anywhere.files.typed_paths import resolve_as_typed

SECTIONS = ("cluster", "container", "paths", "features")
"""Sections that a program has too."""

KEYS = (
    "name", "launch", "wait", "after", "dry_run", "resume", "trust", "trainer.nodes", "trainer.devices", "trainer.total_devices",
    "trainer.accelerator", "checkpoint.local", "checkpoint.every_n_seconds", "monitor.sample_seconds", "monitor.serve",
    "monitor.serve_address", "monitor.dashboard", "monitor.hang", "monitor.hang_minutes",
    "monitor.idle", "monitor.notify",
)  # fmt: skip
"""Other keys that a program has."""

FIXED = ("strategy=ddp",)
"""Choices of the training that give a program one rank per device, and any number of nodes."""


def split_command(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before `--`, and the program with its arguments after it."""
    at = list(arguments).index("--") if "--" in arguments else len(arguments)
    return [*arguments[:at]], [*arguments[at + 1 :]]


def refuse_flags(words: Sequence[str]) -> list[str]:
    """Return the overrides. Raises ConfigError if there is a flag among them."""
    line = split_flags(words)
    if {"-m", "--multirun"} & {*line.flags}:
        raise ConfigError(
            "a program has no sweeps (-m): run src/run.py once for each set of arguments, such as: "
            "for n in 1 2; do python src/run.py cluster=slurm -- script.py --seed $n; done"
        )
    if line.flags:
        raise ConfigError(
            f"{line.flags[0]} is not a flag of src/run.py; arguments of the program come after --, such as: "
            "python src/run.py cluster=slurm -- script.py --epochs 3."
        )
    return line.overrides


def find_program(program: Sequence[str]) -> list[str]:
    """Return the program with its script relative to the project; the arguments stay as they are.

    Raises:
        ConfigError: it is not a file of the project, or an argument is not UTF-8.
    """
    if not program:
        raise ConfigError(
            "no program is named: its script comes after --, such as: python src/run.py -- script.py --epochs 3."
        )
    if any(re.search("[\ud800-\udfff]", word) for word in program):
        raise ConfigError("an argument of the program is not UTF-8; rename the file that it names.")
    path = resolve_as_typed(program[0])
    name = os.path.relpath(path, ROOT)
    if name.startswith("../"):
        name = os.path.relpath(os.path.realpath(path), os.path.realpath(ROOT))
    if not path.is_file() or name.startswith("../"):  # the message shows what was typed
        name = program[0] if program[0].startswith(("/", "../")) or path.exists() else f"./{program[0]}"
    elif problems := program_problems([name]):
        raise ConfigError(*problems)
    else:
        return [name, *program[1:]]
    where = (
        f"is outside of this project ({ROOT}), whose copy a job runs" if path.is_file() else "is not a file"
    )
    raise ConfigError(
        f"{program[0]!r} {where}; name a script of the project first, then its arguments: python src/run.py -- script.py --epochs 3."
    )


def unused_key_problems(words: Sequence[str]) -> list[str]:
    """Return a message if there are keys that a training has and a program has not."""
    known = {"experiment", *(key.partition(".")[0] for key in flatten(compose([])))}
    keys = [word.lstrip("+~").partition("=")[0] for word in words]
    tops = {key: key.partition(".")[0] for key in keys}
    unused = [k for k, top in tops.items() if top in known and k not in KEYS and top not in SECTIONS]
    if not unused:
        return []
    return [
        f"{', '.join(unused)}: a key of a training means nothing for a program; pass the program's own arguments after --, or leave it "
        f"out. Keys of a program: {', '.join((*SECTIONS, *KEYS))}."
    ]


def default_name(program: Sequence[str]) -> str:
    """Return the name of the run: that of the script."""
    stem = re.sub(r"[^A-Za-z0-9._=+-]", "-", Path(program[0]).stem).lstrip("._=+-")[:100]
    return stem if stem and stem.lower() != "latest" else "program"


def prepare_words(words: Sequence[str], program: Sequence[str]) -> list[str]:
    """Return the overrides in Hydra's notation, with the name of the run."""
    install_choice_loader()
    named = any(word.startswith(("name=", "resume=")) for word in words)
    return [
        quote_value(w)
        for w in ([*words] if named or not program else [f"name={default_name(program)}", *words])
    ]
