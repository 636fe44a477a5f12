"""The log of a process on this machine has its lines, without colors and bars."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from pathlib import Path
from train_anywhere.files.terminal.output import keep_log, mark_lines, protect_output
protect_output()
mark_lines("[rank 1] ")
keep_log(Path(sys.argv[1]))
print("first")
print("\\x1b[31mred\\x1b[0m", file=sys.stderr)
sys.stdout.write("bar 10%")
sys.stdout.write("\\r\\x1b[2Kepoch 1\\nbar 20%\\r\\x1b[2K")
print("last é")
"""


def run(log: Path, **options: object) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([sys.executable, "-c", PROGRAM, str(log)], check=True, **options)  # type: ignore[call-overload,no-any-return]


def test_the_log_has_the_lines_of_both_streams(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    done = run(log, capture_output=True)
    assert b"\x1b[31m" in done.stderr and b"bar 10%" in done.stdout
    marked = ["first", "red", "epoch 1", "last é"]
    assert log.read_text().replace("[rank 1] ", "").splitlines() == ["before", *marked]


def test_a_file_that_is_the_output_gets_each_line_once(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with log.open("ab") as file:
        run(log, stdout=file, stderr=file)
    assert log.read_text().count("first") == 1


def test_a_log_that_can_not_be_written_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for place in (tmp_path / "link", tmp_path / "no" / "log.txt"):
        assert b"first" in run(place, capture_output=True).stdout
    assert (tmp_path / "target").read_text() == ""
