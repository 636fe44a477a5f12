"""The members of one command: a single run, or all runs of a sweep, typed and checked together."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from train_anywhere.config.checks.contradictions import Check
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, SubmitError

OF_THE_COMMAND = ("dry_run", "wait", "after")
"""Keys of the command, of which there is one, rather than of a member."""

Tree = Mapping[str, Any]
"""What Hydra composed for one member, as plain dicts and lists."""


@dataclass(frozen=True)
class Member:
    """One run that a command asks for.

    Attributes:
        config: complete and checked.
        overrides: what was typed for it; kept in its run folder.
    """

    config: Config
    overrides: Sequence[str]


def load_members(trees: Sequence[Tree], overrides: Sequence[Sequence[str]], check: Check) -> list[Member]:
    """Every member typed and checked.

    Raises:
        ConfigError: the problems of all members; those of a sweep say of which.
    """
    members: list[Member] = []
    wrong: list[tuple[str, list[str]]] = []
    for tree, typed in zip(trees, overrides, strict=True):
        try:
            members.append(Member(load(tree, check), typed))
        except ConfigError as error:
            wrong.append((" ".join(typed), error.problems))
    if wrong:
        raise ConfigError(*each_once(wrong, len(trees)))
    return members


def each_once(wrong: Sequence[tuple[str, Sequence[str]]], members: int) -> list[str]:
    """What is wrong with all members, then what is wrong with some, with their words.

    Args:
        wrong: the words of a member, and its problems.
        members: how many there are.
    """
    counts = Counter(problem for _, problems in wrong for problem in dict.fromkeys(problems))
    of_all = [problem for problem, count in counts.items() if count == members]
    return of_all + [f"{typed}: {p}" for typed, problems in wrong for p in problems if p not in of_all]


def refuse_unlike(trees: Sequence[Tree], submitted: bool) -> None:
    """All members go to one scheduler, or all run here.

    Args:
        submitted: whether they are about to be submitted; else they run on this machine.

    Raises:
        ConfigError: with all problems.
        SubmitError: the sweep is empty.
    """
    if not trees:
        raise SubmitError("this sweep has no members: a range() or glob() in it is empty.")
    problems = [
        f"{key} can't be swept: it applies to the whole command, not to a member; give it one value."
        for key in OF_THE_COMMAND
        if any(tree[key] != trees[0][key] for tree in trees)
    ]
    if (len(trees) > 1 or not submitted) and any(tree["resume"] for tree in trees):
        problems.append(
            "resume= continues one run and can't be part of a sweep: resume the members one by one, without -m."
        )
    clusters = list(dict.fromkeys(str(tree["cluster"].get("name")) for tree in trees))
    if len(clusters) > 1:
        commands = ", then ".join(f"cluster={c}" for c in clusters)
        problems.append(
            f"a sweep is one job array of one cluster, or runs here, and this one names {', '.join(clusters)}: "
            f"give each a command of its own ({commands})."
        )
    else:
        problems += _elsewhere(trees[0]["cluster"], len(trees) > 1, submitted)
    if problems:
        raise ConfigError(*problems)


def _elsewhere(cluster: Mapping[str, Any], many: bool, submitted: bool) -> list[str]:
    """A preset brings its launcher along; something on the command line has put another one in its place."""
    name, scheduler = cluster.get("name"), cluster.get("scheduler")
    if scheduler is None:
        return []  # the schema says what is missing
    if submitted and scheduler == "none":
        return [
            f"cluster.scheduler=none: cluster={name} has no scheduler to submit to; to train here use cluster=local."
        ]
    if not submitted and scheduler != "none":
        what = f"a sweep over cluster={name}" if many else f"cluster={name}"
        return [
            f"{what} would train here instead of submitting to {scheduler}: give cluster={name} as a plain value and "
            "leave hydra/launcher= out."
        ]
    return []
