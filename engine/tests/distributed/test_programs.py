"""Clients of the scheduler that do not answer as they should."""

import sys

import pytest

from train_anywhere.distributed import programs
from train_anywhere.errors import NoAnswerError


def test_a_client_that_prints_on_and_on_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MAX_OUTPUT", 1 << 20)
    with pytest.raises(NoAnswerError, match=r"^yes printed more than 1 MiB and was killed\.$"):
        programs.run(["yes"], limit=60)


def test_a_client_that_says_nothing_is_ended() -> None:
    with pytest.raises(NoAnswerError, match=r"^sleep did not answer within 0\.3 s and was killed\.$"):
        programs.run(["sleep", "60"], limit=0.3)


def test_what_is_given_and_printed_slowly_is_whole() -> None:
    program = "import sys, time; time.sleep(0.5); print(len(sys.stdin.read()))"
    answer = programs.run([sys.executable, "-c", program], limit=60, text="x" * 300_000)
    assert (answer.code, answer.out) == (0, "300000\n")
