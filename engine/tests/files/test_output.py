"""A run does not end because its output can't be written, and its log has lines without colors and bars."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.testing.processes import run_python
from train_anywhere.files import ROOT

PRINTS = f"""
import os, sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "engine")!r}]
from train_anywhere.files.terminal.output import outlive_terminal, protect_output
protect_output()
outlive_terminal()
for line in range(30000):  # more than a pipe holds
    print("epoch", line)
    print("größe \\udcf6", line, file=sys.stderr)
os.write(int(sys.argv[1]), b"done")
"""


def ended(redirection: str, tmp_path: Path) -> tuple[int, str, str]:
    """Return exit code, result file and other stream of a process that prints much."""
    done, said = tmp_path / "done", tmp_path / "said"
    (tmp_path / "prints.py").write_text(PRINTS)
    command = f"{sys.executable} {tmp_path}/prints.py 9 9>{done} {redirection.format(said=said)}"
    shell = f"{command}; exit ${{PIPESTATUS[0]}}"
    code = subprocess.run(["bash", "-c", shell], capture_output=True, timeout=60).returncode
    return code, done.read_text(), said.read_text() if said.exists() else ""


@pytest.mark.parametrize(
    "redirection, says",
    [
        (">/dev/full 2>{said}", "standard output can't be written (No space left on device); continuing"),
        ("2>{said} | head -1", "standard output can't be written (Broken pipe); continuing without it."),
        ("2>/dev/full >{said}", "standard error can't be written (No space left on device); continuing"),
        (">/dev/full 2>/dev/full", ""),
        ("2>&-", ""),
        (">&- 2>&- <&-", ""),
    ],
)
def test_full_or_closed_output_does_not_end_a_run(redirection: str, says: str, tmp_path: Path) -> None:
    code, done, said = ended(redirection, tmp_path)
    assert (code, done) == (0, "done")
    assert says in said
    assert said.count("can't be written") <= 1


def test_a_terminal_that_hangs_up_does_not_end_a_run() -> None:
    waits = PRINTS.replace("range(30000)", "range(3)") + "\nos.kill(os.getpid(), 1)\nprint('still here')"
    shown = subprocess.run([sys.executable, "-c", waits, "1"], capture_output=True, timeout=60)
    assert shown.returncode == 0
    assert b"still here" in shown.stdout


def test_a_closed_descriptor_is_not_given_to_the_next_file(tmp_path: Path) -> None:
    """Output of libraries on standard error would end up in a checkpoint."""
    opens = PRINTS.replace("range(30000)", "range(0)") + "\nprint(open(sys.argv[0]).fileno())"
    (tmp_path / "opens.py").write_text(opens)
    shell = f"{sys.executable} {tmp_path}/opens.py 1 2>&-"
    shown = subprocess.run(["bash", "-c", shell], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert int(shown.stdout.removeprefix("done")) > 2


def test_each_line_of_a_marked_process_has_its_mark() -> None:
    """A line printed in parts and a traceback have the mark too."""
    script = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "engine")!r}]
from train_anywhere.files.terminal.output import mark_lines, protect_output
protect_output()
mark_lines("[rank 3] ")
print("one\\ntwo", end="", flush=True)
print(" three")
print()
1 / 0
"""
    shown = run_python("-c", script)
    assert shown.stdout == "[rank 3] one\n[rank 3] two three\n[rank 3] \n"
    assert shown.stderr.splitlines()[-1] == "[rank 3] ZeroDivisionError: division by zero"
    assert all(line.startswith("[rank 3] ") for line in shown.stderr.splitlines())


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
