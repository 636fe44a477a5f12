"""The command line that Hydra gets, and the exit code with one message."""

from collections.abc import Callable

import pytest

from train_anywhere.errors import INTERRUPTED, REFUSED, DataError, NotFiniteError, ProjectError
from train_anywhere.launch.command import build_hydra_arguments, parse_run_argument, run_command

Capture = pytest.CaptureFixture[str]


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


def test_what_a_command_returns_is_the_exit_code() -> None:
    assert run_command(lambda: 75) == 75


@pytest.mark.parametrize("error", [DataError("no data."), NotFiniteError("the loss is nan.")])
def test_an_error_of_the_user_is_one_message(error: ProjectError, capsys: Capture) -> None:
    assert run_command(raising(error)) == error.exit_code
    assert capsys.readouterr().err == f"error: {error}\n"


def test_a_file_that_can_not_be_read_is_one_message(capsys: Capture) -> None:
    assert run_command(raising(PermissionError(13, "Permission denied", "/root/x"))) == REFUSED
    assert capsys.readouterr().err == "error: /root/x: Permission denied.\n"


def test_ctrl_c_has_its_own_code(capsys: Capture) -> None:
    assert run_command(raising(KeyboardInterrupt())) == INTERRUPTED
    assert capsys.readouterr().err == "interrupted.\n"


def test_a_reader_that_went_away_is_no_error() -> None:
    assert run_command(raising(BrokenPipeError())) == 0


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_command(raising(ZeroDivisionError()))
