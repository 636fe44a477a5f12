"""Scripts of every preset and launch method, and all keys, against reviewed ones."""

import difflib
import importlib.util
import subprocess

from tools.testbed.sites import SITES
from train_anywhere.files import ENGINE, ROOT

GOLDEN = ROOT / "engine" / "tests" / "golden"
spec = importlib.util.spec_from_file_location("renew", GOLDEN / "renew.py")
assert spec and spec.loader
renew = importlib.util.module_from_spec(spec)
spec.loader.exec_module(renew)


def test_golden() -> None:
    kept = {path.name: path.read_text() for path in GOLDEN.iterdir() if path.suffix in (".sh", ".txt")}
    changes = []
    for name, text in renew.files().items():
        before, now = kept.pop(name, "").splitlines(), text.splitlines()
        changes += difflib.unified_diff(before, now, name, "now", n=0, lineterm="")
    assert (changes, kept) == ([], {}), "if this is meant: make golden"


def test_every_preset_and_launch_method_is_a_case() -> None:
    presets = {p.stem for p in (ENGINE / "train_anywhere/config/presets/cluster").glob("*.yaml")}
    assert {*SITES, "pbs"} <= presets & set(renew.CASES)
    assert {f"neuron-{way}" for way in ("srun", "torchrun", "mpirun", "horovodrun")} <= set(renew.CASES)


def test_bash_reads_every_script() -> None:
    complaints = {}
    for name in renew.CASES:
        done = subprocess.run(["bash", "-n"], input=renew.script(name), text=True, capture_output=True)
        if done.returncode or done.stderr:
            complaints[name] = done.stderr
    assert complaints == {}
