"""What the members of one sweep must have in common, whatever else they try."""

from collections.abc import Mapping, Sequence
from typing import Any

from src.errors import ConfigError, SubmitError

OF_THE_COMMAND = ("dry_run", "wait")
"""Keys that speak of the command, of which there is one."""


def refuse_unlike(trees: Sequence[Mapping[str, Any]], submitted: bool = True) -> None:
    """All members go to one scheduler, or all run here.

    Args:
        trees: the composed configuration of each member.
        submitted: whether they are about to be submitted; else they run on this machine.

    Raises:
        ConfigError: with all problems.
        SubmitError: there is no member.
    """
    if not trees:
        raise SubmitError("this sweep has no members: a range() or glob() in it is empty.")
    problems = [
        f"{key} can't be swept: it speaks of the whole command, not of a member; give it one value."
        for key in OF_THE_COMMAND
        if any(tree[key] != trees[0][key] for tree in trees)
    ]
    if (len(trees) > 1 or not submitted) and any(tree["resume"] for tree in trees):
        problems.append(
            "resume= goes on with one run and can't be part of a sweep: resume its members one by one, without -m."
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


def refuse_foreign_launcher(launcher: object, ours: tuple[type, ...]) -> None:
    """Only the launchers of this project know what `cluster=` means: another one would train here, one member of a sweep.

    Raises:
        ConfigError: it is another one.
    """
    if not isinstance(launcher, ours):
        raise ConfigError(
            f"hydra/launcher: {type(launcher).__name__} can't be used here; leave it out, cluster= chooses the launcher."
        )


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
