"""Every bad input gets one message: no traceback, no hang, nothing written.

BAD_INPUTS=all tries all rows instead of every fifteenth.
"""

import re
import subprocess
from collections.abc import Callable, Iterator

import pytest

from engine.tests.bad_inputs.row import SCRIPTS, Row, ask
from engine.tests.bad_inputs.rows import QUICK, ROWS, TRIED
from engine.tests.bad_inputs.scratch import TRAINS, Answer, Scratch

BOTH_WAYS = QUICK[:: len(QUICK) // 4]
"""Rows that run both in a fork and in a new interpreter."""


@pytest.fixture(scope="module")
def scratch(require: Callable[[object, str], None]) -> Iterator[Scratch]:
    confined = subprocess.run(
        ["unshare", "--mount", "setpriv", "--bounding-set=-all", "true"], capture_output=True
    )
    require(
        confined.returncode == 0, "run as root: bad inputs are tried where only one folder can be written"
    )
    with Scratch() as made:
        yield made


@pytest.mark.parametrize("row", TRIED, ids=[r.id for r in TRIED])
def test_gets_one_sentence(row, scratch) -> None:
    answer = ask(row, scratch)
    wrong = faults(row, answer)
    assert not wrong, (
        f"{', '.join(wrong)}; exit code {answer.code}\n{answer.stderr[-3000:]}{answer.stdout[-600:]}{answer.written[:5]}"
    )


def faults(row: Row, answer: Answer) -> list[str]:
    """Return the names of the faults of an answer."""
    said = answer.stderr if row.code else answer.stdout + answer.stderr
    stray = [p for p in answer.written if not (row.writes and re.fullmatch(row.writes, p))]
    found = {
        "hang": not answer.ended,
        "traceback": "Traceback (most recent call last)" in answer.stdout + answer.stderr,
        "it trains": answer.code == TRAINS,
        "exit code": answer.code != row.code,
        "sentence": not re.search(row.says, said, re.MULTILINE),
        "wrote": bool(stray),
    }
    return [fault for fault, holds in found.items() if holds]


@pytest.mark.parametrize("row", BOTH_WAYS, ids=[r.id for r in BOTH_WAYS])
def test_a_fork_answers_as_a_new_interpreter_does(row: Row, scratch: Scratch) -> None:
    forked, new = ask(row, scratch), ask(row, scratch, real=True)
    assert plain(forked) == plain(new)


def plain(answer: Answer) -> tuple[object, ...]:
    """Return an answer without times, ages, run ids and the frames of tracebacks."""
    said = re.sub(r"\d{8}-\d{6}-[0-9a-f]{4}", "RUN", re.sub(r"(?s)Traceback.*", "Traceback", answer.stderr))
    printed = re.sub(r"\d+ s ago", "AGO", answer.stdout)
    return answer.code, answer.ended, printed, said, bool(answer.written)


def test_rows_are_many_and_their_names_differ() -> None:
    assert len(QUICK) >= 70
    assert len({r.id for r in ROWS}) == len(ROWS)
    assert {r.command for r in ROWS} == set(SCRIPTS)
