"""What this project promises of its own speed, beside what a run of the benchmarks has found."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Found = Mapping[str, Any]


class Goal(NamedTuple):
    """One figure.

    Attributes:
        suite: whose last line has it.
        about: what it is.
        read: takes it from there. Raises KeyError, ValueError: the run has not measured it.
        bound: it is at most this; None: there is a goal alone.
        goal: what would be better still.
    """

    suite: str
    about: str
    read: Callable[[Any], float]
    bound: float | None
    goal: float | None = None


def at(*keys: str) -> Callable[[Any], float]:
    """The value below these keys."""

    def read(found: Any) -> float:
        for key in keys:
            found = found[key]
        return float(found)

    return read


def packed_calls(framework: str) -> Callable[[Any], float]:
    """File calls of the rank that makes most of them, with the packed environment; `elsewhere` is not on the shared disk."""
    return lambda found: max(
        sum(count for where, count in rank.items() if where != "elsewhere")
        for rank in found[framework]["file_calls"]["packed"]
    )


def more_sent(found: Found) -> float:
    """Operations by which the steps of ours exceed those by hand, in the strategy where that is most; a name without bytes is a wait."""

    def sent(steps: Found) -> float:
        return float(sum(count for name, count in steps.items() if f"{name} bytes" in steps))

    return max(sent(both["ours"]["steps"]) - sent(both["raw"]["steps"]) for both in found.values())


def stall_by_best_peer(found: Found) -> float:
    """How long our checkpoints hold up the training, by the least of the others."""
    start = "checkpoint stall, "
    stalls = {name.removeprefix(start): stall for name, stall in found.items() if name.startswith(start)}
    ours = float(stalls.pop("ours"))
    return ours / min(stalls.values())


def growth(found: Found) -> float:
    """Of the seconds from 1,000 to 9,408 nodes, by that of the nodes, in the part where they grow fastest; a tenth of a second is noise."""
    return max(
        (rows[-1]["seconds"] / max(rows[-2]["seconds"], 0.1) / 9.408 for rows in found.values()), default=0.0
    )


GOALS = (
    Goal("step", "Lightning: µs of a step over a loop by hand", at("lightning", "ours", "over_us"), 350, 100),
    Goal("step", "Keras: a step by a tf.function for each", at("keras", "ours", "ratio"), 0.35, 0.25),
    Goal("start", "Lightning: file calls of a rank, packed", packed_calls("lightning"), 100),
    Goal(
        "start",
        "Lightning: a run of one step by `import torch`",
        at("lightning", "ratio_to_import", "torch"),
        None,
        1.5,
    ),
    Goal("start", "Keras: file calls of a rank, packed", packed_calls("keras"), 100),
    Goal("sweep", "Lightning: further member by Hydra's basic", at("lightning", "ratio"), 1.2),
    Goal("sweep", "Keras: further member by Hydra's basic", at("keras", "ratio"), 1.2),
    Goal("data", "Lightning: JPEG files, time by a loop by hand", at("lightning", "pictures", "ratio"), 1.05),
    Goal("data", "Lightning: digits, time by a loop by hand", at("lightning", "digits", "ratio"), 1.1),
    Goal("data", "Lightning: MNIST's size, time by a loop by hand", at("lightning", "mnist", "ratio"), 1.1),
    Goal("data", "Keras: JPEG files, time by a tf.data pipeline", at("keras", "pictures", "ratio"), 1.0),
    Goal("data", "Keras: digits, time by a loop by hand", at("keras", "digits", "ratio"), 1.1),
    Goal("data", "Keras: MNIST's size, time by a loop by hand", at("keras", "mnist", "ratio"), 1.1),
    Goal("collectives", "operations of all steps more than by hand", more_sent, 0),
    Goal("checkpoint", "stall by that of the best peer", stall_by_best_peer, 1.0),
    Goal("scale", "growth with the nodes, 1: linear", growth, 1.0),
)


def rows(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was found of each: about, found, bound, goal, met ("yes", "the bound", "no")."""
    shown = []
    for goal in GOALS:
        try:
            found = goal.read(results[goal.suite]["found"])
        except (KeyError, ValueError):
            continue
        met = "no"
        if goal.bound is not None and found <= goal.bound:
            met = "yes" if goal.goal is None else "the bound"
        if goal.goal is not None and found <= goal.goal:
            met = "yes"
        shown.append(
            {
                "about": goal.about,
                "found": round(found, 3),
                "bound": goal.bound,
                "goal": goal.goal,
                "met": met,
            }
        )
    return shown


def table(shown: list[dict[str, Any]]) -> str:
    """To read."""
    lines = [f"{'':50}{'found':>10}{'at most':>10}{'goal':>8}  met"]
    for row in shown:
        bound, goal = ("" if row[key] is None else f"{row[key]:g}" for key in ("bound", "goal"))
        lines.append(f"{row['about']:50}{row['found']:>10g}{bound:>10}{goal:>8}  {row['met']}")
    return "\n".join(lines)
