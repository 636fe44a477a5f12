"""The goals for this project's speed, and their comparison with the results of the benchmarks."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Found = Mapping[str, Any]


class Goal(NamedTuple):
    """A goal for one number.

    Attributes:
        suite: the benchmark that measures it.
        about: its description.
        read: function that reads it from the results of the suite. Raises KeyError or ValueError: it was not measured.
        bound: the largest value allowed.
    """

    suite: str
    about: str
    read: Callable[[Any], float]
    bound: float


def value_at(*keys: str) -> Callable[[Any], float]:
    """Return a function that returns the value below these keys."""

    def read(found: Any) -> float:
        for key in keys:
            found = found[key]
        return float(found)

    return read


def extra_operations(found: Found) -> float:
    """Return the largest number, over strategies, of operations that this project's steps need beyond a loop by hand.

    A name without bytes is a wait, and does not count.
    """

    def count_operations(steps: Found) -> float:
        return float(sum(count for name, count in steps.items() if f"{name} bytes" in steps))

    return max(
        count_operations(both["ours"]["steps"]) - count_operations(both["raw"]["steps"])
        for both in found.values()
    )


def stall_ratio(found: Found) -> float:
    """Return how long this project's checkpoints stall the training, divided by the shortest stall of the peers."""
    start = "checkpoint stall, "
    stalls = {name.removeprefix(start): stall for name, stall in found.items() if name.startswith(start)}
    ours = float(stalls.pop("ours"))
    return ours / min(stalls.values())


def growth_ratio(found: Found) -> float:
    """Return the growth in seconds from 1,000 to 9,408 nodes divided by the growth in nodes, for the part that grows fastest.

    Times below a tenth of a second are noise.
    """
    return max(
        (rows[-1]["seconds"] / max(rows[-2]["seconds"], 0.1) / 9.408 for rows in found.values()), default=0.0
    )


GOALS = (
    Goal("sweep", "Lightning: further member / Hydra's basic launcher", value_at("lightning", "ratio"), 1.2),
    Goal("sweep", "Keras: further member / Hydra's basic launcher", value_at("keras", "ratio"), 1.2),
    Goal(
        "data", "Lightning: JPEG files, time / loop by hand", value_at("lightning", "pictures", "ratio"), 1.05
    ),
    Goal("data", "Lightning: digits, time / loop by hand", value_at("lightning", "digits", "ratio"), 1.1),
    Goal(
        "data", "Lightning: MNIST's size, time / loop by hand", value_at("lightning", "mnist", "ratio"), 1.1
    ),
    Goal("data", "Keras: JPEG files, time / tf.data pipeline", value_at("keras", "pictures", "ratio"), 1.0),
    Goal("data", "Keras: digits, time / loop by hand", value_at("keras", "digits", "ratio"), 1.1),
    Goal("data", "Keras: MNIST's size, time / loop by hand", value_at("keras", "mnist", "ratio"), 1.1),
    Goal("collectives", "operations of all steps beyond a loop by hand", extra_operations, 0),
    Goal("checkpoint", "checkpoint stall / that of the best peer", stall_ratio, 1.0),
    Goal("scale", "growth with the nodes (1: linear)", growth_ratio, 1.0),
)


def evaluate_goals(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each measured goal: about, found, bound, met."""
    rows = []
    for goal in GOALS:
        try:
            found = goal.read(results[goal.suite]["found"])
        except (KeyError, ValueError):
            continue
        met = found <= goal.bound
        rows.append({"about": goal.about, "found": round(found, 3), "bound": goal.bound, "met": met})
    return rows


def format_table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as a table."""
    lines = [f"{'':50}{'found':>10}{'at most':>10}  met"]
    for row in rows:
        met = "yes" if row["met"] else "no"
        lines.append(f"{row['about']:50}{row['found']:>10g}{row['bound']:>10g}  {met}")
    return "\n".join(lines)
