"""Find the key that is meant by a name of another section or program."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train_anywhere.config.keys import flatten
from train_anywhere.config.search_terms import find_page
from train_anywhere.errors import NO_KEY, Problem
from train_anywhere.files import ROOT

HINTS: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("hints.json").read_text())
"""What users of other programs may type, and what they mean.

keys             keys, each with the names under which users of Slurm, Lightning, Keras and torchrun may type it
typed            keys that take the arguments of another program, with how one is typed
ways             what to do instead of arguments of other programs that are no key
own_arguments    arguments of Lightning's Trainer that this project sets, and what to use instead
removed          keys, and values as KEY=VALUE, that were removed, with the message
"""

OTHER_NAMES, TYPED, OWN_ARGUMENTS, REMOVED = (
    HINTS[name] for name in ("keys", "typed", "own_arguments", "removed")
)
OTHER_WAYS = {name: way for way, names in HINTS["ways"].items() for name in names.split()}

SITE = "cluster.site."
"""Facts of a preset, which have names like those of keys that are typed."""


def with_keys_meant(problem: str, tree: Mapping[str, Any]) -> str:
    """Return the message about an unknown key or removed value with what is meant."""
    if not isinstance(problem, Problem):
        return problem
    if removed := REMOVED.get(f"{problem.key}={problem.value}" if problem.kind == "value" else problem.key):
        return removed
    if problem.kind == "value" or (problem.kind == "argument" and "Did you mean" in problem):
        return problem
    hint = _hint(problem.key, tree)
    start = f"'{problem.key}' {NO_KEY}" if problem.kind == "key" else problem.removesuffix(".")
    return f"{start}{hint}" if hint else problem


def _hint(word: str, tree: Mapping[str, Any]) -> str:
    """Return the end of a message about an unknown key; "" if what is meant is not known."""
    last = word.rpartition(".")[2]
    if way := OTHER_WAYS.get(last):
        return f"; {way}."
    if meant := keys_meant(word, tree):
        option = last.replace("_", "-") if "cluster.extra" in meant else last
        typed = [f"'{TYPED.get(other, other).format(option)}'" for other in meant]
        return f". Did you mean {' or '.join(typed)}?"
    if own := OWN_ARGUMENTS.get(last):
        return f"; use {own}."
    page = find_page(word)
    return f"; see {page_address(page)}." if page else ""


def keys_meant(word: str, tree: Mapping[str, Any]) -> list[str]:
    """Return the key with this other name, else those of other sections with the same end."""
    if word.startswith(SITE):
        return []
    last = word.rpartition(".")[2].lower().replace("-", "_").replace(" ", "_").removeprefix("slurm_")
    if meant := [key for key, names in OTHER_NAMES.items() if last in names.split()]:
        return meant
    known = map(str, {**flatten(tree), **tree})
    keys = [key for key in known if key != word and not key.startswith(SITE)]
    same = [key for key in keys if key.rpartition(".")[2] == last]
    return same if len(same) <= 3 else []  # such as `name`, which many sections have


def page_address(page: str) -> str:
    """Return where a page is: a file of the template, or the address that this project was made with."""
    made = ROOT / ".train-anywhere"
    pages = (
        ""
        if (ROOT / "docs").is_dir() or not made.is_file()
        else json.loads(made.read_text())["choices"]["pages"]
    )
    return f"{pages or 'docs'}/{page}.md"
