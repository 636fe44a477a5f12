"""Logs of several members and ranks as one output."""

from pathlib import Path

import pytest

from train_anywhere.errors import SubmitError
from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.status.find_runs import RunEntry
from train_anywhere.slurm.status.show_logs import Logs, rank_of, show


def run(tmp_path: Path, name: str, text: str) -> RunEntry:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "slurm-7.out").write_text(text)
    return RunEntry(RunDir(folder), None, "slurm", None, ("7",))


@pytest.mark.parametrize(
    "line, rank",
    [
        ("epoch 1/2", 0),
        ("[rank 3] epoch", 3),
        ("[12]<stderr>:[rank 12] oh", 12),
        ("[1,12]<stdout>:[rank 12] oh", 12),
        ("[0]<stdout>:epoch 1/2", 0),
        ("he said [rank 3] ", 0),
    ],
)
def test_whose_line_it_is(line: str, rank: int) -> None:
    assert rank_of(line) == rank


def test_the_lines_of_one_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = run(tmp_path, "a", "start\n[rank 1] hello\n[rank 10] no\n[rank 1] bye\n")
    show(one, heading=False, rank=1)
    assert capsys.readouterr().out == "[rank 1] hello\n[rank 1] bye\n"
    assert Logs([one], rank=0).read_new() == "start\n"
    with pytest.raises(
        SubmitError, match="--rank 2: the log has no line of that rank, only of ranks 0 to 10"
    ):
        show(one, heading=False, rank=2)


def test_a_progress_bar_is_one_line_of_its_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "[rank 1] \r 10%\r 20%\n\r 30%\n"
    one = run(tmp_path, "a", text)
    for rank, shown in ((1, "[rank 1] \r 10%\r 20%\n"), (0, "\r 30%\n"), (None, text)):
        show(one, heading=False, rank=rank)
        assert capsys.readouterr().out == Logs([one], rank).read_new() == shown


def test_members_are_merged_by_whole_lines(tmp_path: Path) -> None:
    a, b = run(tmp_path, "a", "one\ntw"), run(tmp_path, "b", "")
    logs = Logs([a, b])
    assert logs.read_new() == "[a] one\n"
    with open(a.logs()[0], "a") as file:
        file.write("o\nthree")
    b.logs()[0].write_text("[rank 1] x\n")
    assert logs.read_new() == "[a] two\n[b] [rank 1] x\n"
    assert logs.read_new() == ""
    assert logs.read_new(last=True) == "[a] three\n"


def test_the_log_of_one_run_is_shown_as_it_grows(tmp_path: Path) -> None:
    """Whole or not: a bar or a question is seen at once."""
    assert Logs([run(tmp_path, "a", "one\ntw")]).read_new() == "one\ntw"
