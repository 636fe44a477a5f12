"""Logs of several members and ranks as one output."""

from pathlib import Path

from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.status.find_runs import RunEntry
from train_anywhere.slurm.status.show_logs import Logs


def run(tmp_path: Path, name: str, text: str) -> RunEntry:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "slurm-7.out").write_text(text)
    return RunEntry(RunDir(folder), None, "slurm", None, ("7",))


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
