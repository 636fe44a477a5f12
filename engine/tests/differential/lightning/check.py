"""Run drawn programs with Lightning alone and with this project, and return the differences."""

from typing import Any

from engine.tests.differential.draws import Draws, Spec
from engine.tests.differential.forks import ForkError
from engine.tests.differential.lightning.compare import Differences, compare, last_line, without_hooks
from engine.tests.differential.lightning.program import draw_program, render
from engine.tests.differential.lightning.sides import run_program, warm_up

__all__ = ["check", "draw_program", "render", "warm_up"]


def check(spec: Spec, ranks: int = 1, stops: bool = False) -> Differences | str:
    """Return the differences of a program; a string if Lightning alone refuses it."""
    events = run_program(spec, ranks)
    plain, ours = events["plain"][0], events["ours"][0]
    differences = compare(plain, ours)
    if differences is None:
        return last_line(plain)
    if stops and not isinstance(ours, ForkError):
        stop = Draws(spec["seed"]).randint(1, len(ours) - 1)
        again = run_program(spec, ranks, stop, ("stopped", "resumed"))
        found = compare_resumed(ours, again["stopped"][0], again["resumed"][0])
        differences |= {f"resume: {kind}": f"stop {stop}: {example}" for kind, example in found.items()}
    return differences


def compare_resumed(whole: Any, stopped: Any, resumed: Any) -> Differences:
    """Return how a run that was stopped and resumed differs from the uninterrupted one."""
    for name, events in (("stopped", stopped), ("resumed", resumed)):
        if isinstance(events, ForkError):
            return {f"{name} run fails: {last_line(events)}": str(events)}
    if stopped[-1][1] == "completed":
        return {}  # the signal came too late
    trained = [
        [n for n, e in enumerate(events) if e[1] == "training_step"] for events in (whole, stopped, resumed)
    ]
    differences: Differences = {}
    if [whole[n][3:5] for n in trained[0]][: len(trained[1])] != [stopped[n][3:5] for n in trained[1]]:
        differences["rows before the stop"] = ""
    if not trained[2]:  # nothing was left to train
        ends = [
            next((n for n, e in enumerate(es) if e[1] == "end of TrainerFn.FITTING"), 0)
            for es in (whole, resumed)
        ]
        if whole[ends[0]][7]["weights"] != resumed[ends[1]][7]["weights"]:
            differences["weights"] = ""
        after = [
            without_hooks(es[end + 1 :], ("on_fit_end", "teardown"))
            for es, end in zip((whole, resumed), ends, strict=True)
        ]
        return differences | (compare(*after) or {})
    first = resumed[trained[2][0]]
    places = [n for n in trained[0][: len(trained[1]) + 1] if whole[n][3:5] == first[3:5]]
    if not places:
        return differences | {
            "rows after the stop": f"{first} is not a next step after {len(trained[1])} steps"
        }
    return differences | (compare(whole[places[-1] :], resumed[trained[2][0] :]) or {})
