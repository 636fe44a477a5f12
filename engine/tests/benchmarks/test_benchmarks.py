"""The benchmarks run and end with one JSON object. Their results are not judged here."""

import json
from pathlib import Path

import pytest

from benchmarks import scale
from benchmarks.__main__ import SUITES
from benchmarks.goals import GOALS, evaluate_goals, format_table
from benchmarks.rounds import Program, Rounds, take_turns
from tools.testing.processes import run_python
from train_anywhere.files import ROOT

PARTS = {"__main__", "goals", "rounds"}
"""Modules that measure nothing themselves."""


def test_every_benchmark_is_in_the_list() -> None:
    assert {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - PARTS <= {
        name.split()[0] for name in SUITES
    }
    assert {goal.suite for goal in GOALS} <= {*SUITES}


def test_disturbed_rounds_are_told_apart() -> None:
    """Made-up times: in the second round everything took twice as long, the fixed work too."""
    found = Rounds({"hand": [1.0, 2.0, 1.0], "ours": [1.5, 6.0, 1.7]}, work=[1.1, 2.0, 1.2], best=1.0)
    assert (found.counted_rounds(), found.disturbed) == ([0, 2], 1)
    assert found.ratio("ours", "hand") == pytest.approx((1.6, 1.5, 1.7))
    assert found.difference("ours", "hand") == pytest.approx(0.6)
    assert found.describe_disturbed().startswith(
        "1 of 3 rounds were disturbed: fixed work took up to 2.0 times its best"
    )
    found.best = 0.5
    assert found.counted_rounds() == [0, 1, 2] and "All rounds count" in found.describe_disturbed()


def test_each_program_takes_its_turn() -> None:
    turns = []

    def measure(name: str) -> float:
        turns.append(name)
        return float(len(turns))

    found = take_turns(("hand", "ours"), 2, measure, unused=1)
    assert turns == ["hand", "ours"] * 3
    assert found.seconds == {"hand": [3.0, 5.0], "ours": [4.0, 6.0]} and len(found.work) == 2


def test_a_program_waits_for_its_turn(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        "import sys\nprint('a warning', file=sys.stderr)\nfor n, _ in zip('12', sys.stdin): print(n, flush=True)\n1 / 0"
    )
    program = Program([str(file)])
    assert [program.next_number(), program.next_number()] == [1.0, 2.0]
    with pytest.raises(SystemExit, match="ZeroDivisionError"):
        program.next_number()
    program.close()


def test_what_is_promised_stands_beside_what_was_found() -> None:
    suites = {goal.suite for goal in GOALS}
    assert evaluate_goals({name: {"exit_code": 1} for name in suites}) == []
    row, nothing = {"seconds": 1.0}, {name: {"exit_code": 1} for name in suites - {"scale"}}
    [shown] = evaluate_goals({"scale": {"found": {"ranks": [row, row, {"seconds": 4.704}]}}, **nothing})
    assert (shown["found"], shown["met"]) == (0.5, True)
    [shown] = evaluate_goals({"scale": {"found": {"ranks": [row, row, {"seconds": 94.08}]}}, **nothing})
    assert (shown["found"], shown["met"]) == (10.0, False)
    assert "10" in format_table([shown])


@pytest.mark.slow
@pytest.mark.parametrize("part", scale.PARTS)
def test_each_part_of_scale_measures_a_small_cluster(part: str) -> None:
    found = scale.measure_part(part, 10)
    assert found["seconds"] > 0 and found.keys() == {"seconds", "memory_mib", "bytes"}


@pytest.mark.slow
def test_a_quick_run_ends_with_json() -> None:
    done = run_python("-m", "benchmarks", "--quick", "--only", "sweep")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["machine"]["cores"] >= 1 and found["sweep"]["found"]["lightning"]["seconds"] > 0
    assert [row["met"] for row in found["goals"]] in ([True], [False])
    assert "further member" in done.stdout
