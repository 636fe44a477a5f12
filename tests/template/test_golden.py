"""The script of every preset and launch method, compared with the one that was reviewed."""

import importlib.util
import subprocess

import pytest

from slurm.testbed.sites import SITES
from src.files import ROOT

GOLDEN = ROOT / "tests" / "template" / "golden"
spec = importlib.util.spec_from_file_location("renew", GOLDEN / "renew.py")
assert spec and spec.loader
renew = importlib.util.module_from_spec(spec)
spec.loader.exec_module(renew)


@pytest.mark.parametrize("name", renew.CASES)
def test_golden(name: str) -> None:
    assert renew.script(name) == (GOLDEN / f"{name}.sh").read_text(), "if this is meant: make golden"


def test_every_preset_and_launch_method_has_a_golden_script() -> None:
    """Of this template: a fork's own presets are rendered in tests/slurm, without a script to compare with."""
    presets = {p.stem for p in (ROOT / "configs" / "cluster").glob("*.yaml")}
    assert {*SITES, "pbs"} <= presets & set(renew.CASES)
    assert {f"neuron-{way}" for way in ("srun", "torchrun", "mpirun", "horovodrun")} <= set(renew.CASES)
    assert {p.stem for p in GOLDEN.glob("*.sh")} == set(renew.CASES)


@pytest.mark.parametrize("name", renew.CASES)
def test_bash_reads_every_script(name: str) -> None:
    subprocess.run(["bash", "-n"], input=renew.script(name), text=True, check=True)


def test_the_list_of_all_keys_grows_on_purpose() -> None:
    assert renew.options() == (GOLDEN / "options.txt").read_text(), "if you mean it: make golden"
