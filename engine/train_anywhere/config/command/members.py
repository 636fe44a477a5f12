"""Load and check the members of one command: a single run, or all runs of a sweep."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from train_anywhere.config.checks.contradictions import Check
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, SubmitError, listed

COMMAND_KEYS = ("dry_run", "wait", "after")
"""Keys that apply to the whole command, not to a member."""

Tree = Mapping[str, Any]
"""The configuration that Hydra composed for one member, as plain dicts and lists."""


@dataclass(frozen=True)
class Member:
    """One run of a command."""

    config: Config
    overrides: Sequence[str]


def load_members(trees: Sequence[Tree], overrides: Sequence[Sequence[str]], check: Check) -> list[Member]:
    """Load and check all members.

    Raises ConfigError: lists the problems of all members; in a sweep, with the overrides of the member.
    """
    members: list[Member] = []
    wrong: list[tuple[str, list[str]]] = []
    for tree, typed in zip(trees, overrides, strict=True):
        try:
            members.append(Member(load(tree, check), typed))
        except ConfigError as error:
            wrong.append((" ".join(typed), error.problems))
    if wrong:
        raise ConfigError(*merge_problems(wrong, len(trees)))
    return members


def merge_problems(wrong: Sequence[tuple[str, Sequence[str]]], members: int) -> list[str]:
    """Return the problems that all members have, then those of single members."""
    counts = Counter(problem for _, problems in wrong for problem in dict.fromkeys(problems))
    of_all = [problem for problem, count in counts.items() if count == members]
    return of_all + [f"{typed}: {p}" for typed, problems in wrong for p in problems if p not in of_all]


def refuse_mixed_members(trees: Sequence[Tree], submitted: bool) -> None:
    """Refuse members that do not all go to one scheduler, or all run here.

    They are `submitted`, or run on this machine.

    Raises ConfigError: lists all problems. Raises SubmitError: the sweep is empty.
    """
    if not trees:
        raise SubmitError("this sweep has no members: a range() or glob() in it is empty.")
    problems = [
        f"{key} can't be swept: it applies to the whole command, not to a member; give it one value."
        for key in COMMAND_KEYS
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
            f"a sweep is one job array of one cluster, or runs here, and this one names {listed(clusters)}: "
            f"give each a command of its own ({commands})."
        )
    else:
        # the command line may replace the launcher
        name, scheduler = clusters[0], trees[0]["cluster"].get("scheduler")
        if submitted and scheduler == "none":
            problems.append(
                f"cluster.scheduler=none: cluster={name} has no scheduler to submit to; to train here use cluster=local."
            )
        if not submitted and scheduler not in ("none", None):  # the schema reports a missing key
            what = f"a sweep over cluster={name}" if len(trees) > 1 else f"cluster={name}"
            problems.append(
                f"{what} would train here instead of submitting to {scheduler}: give cluster={name} as a plain value and "
                "leave hydra/launcher= out."
            )
    if problems:
        raise ConfigError(*problems)


def refuse_alone(tree: Tree) -> None:
    """Refuse members that share a job if there is only one. Raises ConfigError."""
    for name in ("members_per_gpu", "members_per_node"):
        if value := tree["cluster"].get(name):
            raise ConfigError(
                f"cluster.{name}={value} is for the members of a sweep, and this is one run; give several values with -m, or leave it out."
            )
