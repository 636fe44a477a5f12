"""Whole commands on disks that refuse, and in run folders with links, pipes and devices.

CHAOS_KILLS sets the number, as in the other files: with 200 (`make chaos`), every kind of object takes the place of every file.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.confined import confined, works
from train_anywhere.testing.plugin import FRAMEWORKS

PROGRAM = Path(__file__).with_name("disk.py")
KILLS = int(os.environ.get("CHAOS_KILLS", "0"))
FAULTS, FULL, LINKS = max(8, KILLS * 3 // 10), max(4, KILLS // 25), max(12, KILLS * 5)


pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture
def experiment(tmp_path: Path, require: Callable[[object, str], None]) -> Callable[..., int]:
    """Run a confined experiment and return its number of commands."""
    require(shutil.which("cc"), "install a C compiler: apt install gcc")
    require(os.getuid() == 0 and works(tmp_path), "run as root: the test writes in one folder only")

    def run(*words: object) -> int:
        environ = {**os.environ, "TMPDIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
        command = [sys.executable, str(PROGRAM), *map(str, words)]
        done = confined(tmp_path, command, env=environ, timeout=3000)
        assert done.stdout, done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
        assert result["wrong"] == [], "\n".join(result["wrong"])
        return int(result["commands"])

    return run


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_disks_that_refuse(framework: str, experiment: Callable[..., int]) -> None:
    """Each run ends with an exit code that fits its state, and one message that names a file."""
    assert experiment("faults", framework, FAULTS) >= FAULTS


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_disks_that_are_too_small(framework: str, experiment: Callable[..., int]) -> None:
    assert experiment("full", framework, FULL) == FULL


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_something_else_in_the_place_of_a_file(framework: str, experiment: Callable[..., int]) -> None:
    """`resume=` refuses or replaces it, and the target of a link stays unchanged."""
    assert experiment("links", framework, LINKS) >= min(LINKS, 60)
