"""A run does not end because its output can't be written."""

import subprocess
import sys
from pathlib import Path

import pytest

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
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert shown.stdout == "[rank 3] one\n[rank 3] two three\n[rank 3] \n"
    assert shown.stderr.splitlines()[-1] == "[rank 3] ZeroDivisionError: division by zero"
    assert all(line.startswith("[rank 3] ") for line in shown.stderr.splitlines())
