"""Run drawn programs with plain Lightning and with this project, and return the differences."""

import math
from collections.abc import Callable
from typing import Any

from engine.tests.differential.draws import Draws, Spec
from engine.tests.differential.draws import count_names as count_draws
from engine.tests.differential.forks import ForkError
from engine.tests.differential.lightning.compare import (
    SETUP_HOOKS,
    Differences,
    compare,
    last_line,
    without_hooks,
)
from engine.tests.differential.lightning.faults import EXPECTED
from engine.tests.differential.lightning.program import DRAWN, draw_program, render
from engine.tests.differential.lightning.sides import run_program, warm_up

__all__ = ["DRAWN", "EXPECTED", "INTENDED", "check", "count_draws", "draw_program", "render", "warm_up"]

LONG = 2000
"""Number of programs of a long run on one rank."""

RANK_KINDS = ("rows", "logged.rows", "order: ", "epoch and step", "random", "arguments", "weights", "values in", "names in",
              "trainer.num_", "trainer.estimated", "trainer.global_step", "trainer.val_check_batch",
              "trainer.is_last_batch", "trainer.optimizers")  # fmt: skip
RESUMED = [
    "trainer.ckpt_path",
    "trainer.num_val_batches",
    "trainer.num_sanity_val_batches",
    "trainer.val_dataloaders",
]
"""What Lightning shows differently in a run that it resumes itself: `test_visible.py` compares these with that."""
INTENDED: dict[str, Callable[[str, int], bool]] = {
    "lightning-callbacks": lambda kind, ranks: kind.endswith("trainer.callbacks of the run"),
    "lightning-checkpoint-hooks": lambda kind, ranks: kind == "checkpoint hooks",
    "lightning-nothing-trained": lambda kind, ranks: kind.startswith("fails: ProjectError: nothing was trained"),
    "lightning-rows": lambda kind, ranks: (
        ranks > 1 and kind.startswith(RANK_KINDS) and not kind.startswith("rows: train")
    ),
}  # fmt: skip
"""The kinds of differences that each row of the table in docs/concepts/own-code.md covers."""


def check(spec: Spec, ranks: int, stops: bool, fault: str, long: bool) -> Differences | str:
    """Return the differences of a program, or a string if plain Lightning refuses it.

    On several ranks the means of evaluations are compared with those of one rank, which reads the same rows.
    """
    events = run_program(spec, ranks, fault=fault)
    plain, ours = (first_error(events[side]) or events[side][0] for side in ("plain", "ours"))
    differences = compare(plain, ours)
    if differences is None:
        return last_line(plain)
    if ranks > 1 and not isinstance(ours, ForkError):
        differences |= compare_means(run_program(spec, sides=["plain"])["plain"][0], ours)
    if stops and not isinstance(ours, ForkError):
        stop = Draws(spec["seed"]).randint(1, len(ours) - 1)
        again = run_program(spec, ranks, stop, ("stopped", "resumed"))
        found = compare_resumed(ours, again["stopped"][0], again["resumed"][0])
        resumed = {kind: example for kind, example in found.items() if kind not in RESUMED}
        differences |= {f"resume: {kind}": f"stop {stop}: {example}" for kind, example in resumed.items()}
    return differences


def first_error(ranks: list[Any]) -> ForkError | None:
    """Return the error of a rank, if possible not that another rank was lost."""
    errors = [found for found in ranks if isinstance(found, ForkError)]
    return min(
        errors, key=lambda error: "closed by peer" in str(error) or "too long" in str(error), default=None
    )


def compare_means(single: Any, ours: Any) -> Differences:
    """Return which means over the rows of an evaluation differ from those of one rank."""
    if isinstance(single, ForkError):
        return {}
    ends = [{e[1]: e[7]["callback_metrics"] for e in events if e[6] == "end"} for events in (single, ours)]
    wrong = {
        name: (value, ends[1][end].get(name))
        for end in ends[0].keys() & ends[1].keys()
        for name, value in ends[0][end].items()
        if "mean" in name and not math.isclose(value, ends[1][end].get(name, value), rel_tol=1e-5)
    }
    return {"means over the rows of all ranks": str(wrong)} if wrong else {}


def compare_resumed(whole: Any, stopped: Any, resumed: Any) -> Differences:
    """Return how a run that was stopped and resumed differs from the uninterrupted one."""
    for name, events in (("stopped", stopped), ("resumed", resumed)):
        if isinstance(events, ForkError):
            return {f"{name} run fails: {last_line(events)}": str(events)}
    whole, resumed = ([e for e in events if e[0] != "CSVLogger"] for events in (whole, resumed))
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
            without_hooks(es[end + 1 :], ("on_train_end", "on_fit_end", *SETUP_HOOKS))
            for es, end in zip((whole, resumed), ends, strict=True)
        ]
        found = compare(*after) or {}
        return differences | {kind: text for kind, text in found.items() if not kind.startswith("trainer.")}
    first = resumed[trained[2][0]]
    places = [n for n in trained[0][: len(trained[1]) + 1] if whole[n][3:5] == first[3:5]]
    if not places:
        return differences | {
            "rows after the stop": f"{first} is not a next step after {len(trained[1])} steps"
        }
    later = [without_hooks(es[n:], SETUP_HOOKS) for es, n in ((whole, places[-1]), (resumed, trained[2][0]))]
    return differences | (compare(*later) or {})
