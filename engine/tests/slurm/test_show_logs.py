"""Logs of several members and ranks as one output."""

from pathlib import Path

from train_anywhere.slurm.status.show_logs import Tail


def test_members_are_merged_by_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "slurm-7.out"
    path.write_text("one\ntw")
    tail = Tail(path, "[a] ")
    assert tail.read_new() == "[a] one\n"
    with open(path, "a") as file:
        file.write("o\n[rank 1] x\nthree")
    assert tail.read_new() == "[a] two\n[a] [rank 1] x\n"
    assert tail.read_new() == ""
    assert tail.read_new(last=True) == "[a] three\n"


def test_the_log_of_one_run_is_shown_as_it_grows(tmp_path: Path) -> None:
    """Whole or not: a bar or a question is seen at once."""
    path = tmp_path / "slurm-7.out"
    path.write_text("one\ntw")
    assert Tail(path).read_new() == "one\ntw"
