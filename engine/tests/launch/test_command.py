"""The command line that Hydra gets, and the exit code with one message."""

from collections.abc import Callable

import pytest

from train_anywhere.errors import INTERRUPTED, REFUSED, DataError, NotFiniteError, ProjectError
from train_anywhere.launch.command import build_hydra_arguments, parse_run_argument, run_command


def raising(error: BaseException) -> Callable[[], int]:
    def command() -> int:
        raise error

    return command


@pytest.fixture(autouse=True)
def no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py"])


def test_flags_come_last_and_values_are_quoted() -> None:
    words = build_hydra_arguments(["-m", "cluster.comment=field=nlp;appl=x", "seed=1,2"])
    assert words == ['cluster.comment="field=nlp;appl=x"', "seed=1,2", "-m"]


@pytest.mark.parametrize("arguments", [[], ["a", "b"]])
def test_a_rank_needs_one_run_folder(arguments: list[str]) -> None:
    with pytest.raises(ProjectError, match="--run takes one run folder"):
        parse_run_argument(arguments)


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (DataError("no data."), DataError.exit_code, "error: no data.\n"),
        (NotFiniteError("the loss is nan."), NotFiniteError.exit_code, "error: the loss is nan.\n"),
        (
            PermissionError(13, "Permission denied", "/root/x"),
            REFUSED,
            "error: /root/x: Permission denied.\n",
        ),
        (KeyboardInterrupt(), INTERRUPTED, "interrupted.\n"),
        (BrokenPipeError(), 0, ""),  # a reader has gone
        (None, 75, ""),
    ],
)
def test_the_exit_code_and_one_message(error, code, printed, capsys):
    assert run_command(raising(error) if error else lambda: 75) == code
    assert capsys.readouterr().err == printed


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_command(raising(ZeroDivisionError()))
