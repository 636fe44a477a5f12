"""The crash laboratory notices faults. CHAOS_KILLS sets the number of kills."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.testing.processes import run_python

HERE = Path(__file__).parent
KILLS = int(os.environ.get("CHAOS_KILLS", "20"))

UNSAFE = """
import sys
sys.path[:0] = [{root!r}, {root!r} + "/engine", {here!r}]
import lab, train_anywhere.checkpoints.store, train_anywhere.checkpoints.recovery
from trainees import TRAINEES, Plain

def in_place(self, temporary, step):  # what a copy loop does: the checkpoint is in sight before it is whole
    final = self.folder / f"{{step:08d}}"
    final.mkdir(exist_ok=True)
    for file in sorted(temporary.iterdir(), reverse=True):
        (final / file.name).write_bytes(file.read_bytes())
    self._clean(final, superseded={{temporary}})
    return train_anywhere.checkpoints.store.load_manifest(final)

class Forgetful(Plain):
    def weights(self, saved):
        return super().weights(saved) + str(saved.path.stat().st_ino)

if {what!r} == "torn":
    train_anywhere.checkpoints.store.CheckpointStore._install = in_place
else:
    TRAINEES["plain"] = Forgetful
sys.exit(lab.main())
"""


def experiment(*command: str, timeout: float = 600) -> dict:
    """Run the laboratory and return its last line."""
    done = run_python(*command, timeout=timeout)
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def unharmed(*words: str, timeout: float = 600) -> dict:
    """Run the laboratory, in which nothing may be torn, lost or different."""
    result = experiment(str(HERE / "lab.py"), *words, timeout=timeout)
    assert (result["torn"], result["lost"], result["different"]) == (0, 0, 0), result["notes"]
    return result


@pytest.fixture(autouse=True)
def compiler(require: Callable[[object, str], None]) -> None:
    require(shutil.which("cc"), "install a C compiler: apt install gcc")


def test_some_kills_of_saving_and_publishing() -> None:
    """At file operations and at random moments, with every kind of trouble."""
    result = unharmed("--kills", "20")
    assert result["kills"] >= 20 and result["troubles"] > 10


@pytest.mark.slow
@pytest.mark.long
def test_a_kill_at_every_file_operation_of_saving_and_publishing() -> None:
    """Each operation once, and more kills at random moments."""
    result = unharmed("--every-operation", "--no-troubles", "--kills", str(KILLS))
    assert result["kills"] >= max(KILLS, result["operations"], 50)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("framework", ["lightning", "keras"])
def test_kills_at_random_moments(framework: str) -> None:
    result = unharmed("--framework", framework, "--kills", str(KILLS), timeout=3500)
    assert result["kills"] >= KILLS and result["resumes"] >= 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "framework, strategy, devices",
    [("keras", "mirrored", 2), ("lightning", "fsdp", 1)],  # in one process
)
def test_a_few_kills_of_other_strategies(framework: str, strategy: str, devices: int) -> None:
    others = (f"strategy={strategy}", f"trainer.devices={devices}", "--framework", framework)
    result = unharmed(*others, "--kills", "4", "--no-troubles")
    assert result["kills"] >= 4


@pytest.mark.slow
@pytest.mark.parametrize("what", ["torn", "different"])
def test_the_laboratory_notices(what: str, tmp_path: Path) -> None:
    """Kills tear checkpoints that are written in place, and different weights are noticed."""
    script = tmp_path / "unsafe.py"
    script.write_text(UNSAFE.format(root=str(HERE.parent.parent), here=str(HERE), what=what))
    result = experiment(str(script), "--kills", "120" if what == "torn" else "4", "--no-troubles")
    assert result[what] > 0
