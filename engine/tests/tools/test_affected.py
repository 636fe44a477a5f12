"""`make test ARGS=--testmon-forceselect` runs only the tests that a change can affect."""

import re
import sys
from pathlib import Path

import pytest

from tools.testing.projects import copy_project, run_command

FILES = ("engine/tests/slurm/test_units.py", "engine/tests/monitor/test_stragglers.py")


def passed(project: Path) -> set[str]:
    """Return the tests of `FILES` that ran, with the options of `make test`."""
    words = ["-v", "-n", "2", "--dist", "worksteal", "-m", "not slow", "--testmon-forceselect"]
    done = run_command(project, sys.executable, "-m", "pytest", *words, *FILES)
    assert done.returncode == 0, done.stdout + done.stderr
    return {*re.findall(r"PASSED (\S+)", done.stdout)}


@pytest.mark.git
@pytest.mark.slow
def test_a_changed_function_selects_the_tests_that_call_it(tmp_path: Path) -> None:
    project = copy_project(tmp_path)
    first = passed(project)
    assert {name.partition("::")[0] for name in first} == {*FILES}
    units = project / "engine" / "train_anywhere" / "slurm" / "script" / "units.py"
    text = units.read_text()
    units.write_text(text.replace('return f"{time // 3600}:', 'return f"{int(time // 3600)}:'))
    assert units.read_text() != text
    assert passed(project) == {f"{FILES[0]}::test_clock_is_read_back"}
    assert passed(project) == set()
    assert (
        run_command(project, "git", "status", "--short").stdout
        == " M engine/train_anywhere/slurm/script/units.py\n"
    )
