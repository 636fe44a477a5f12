"""The Slurm of the tests can stand for every site of a preset."""

from slurm.testbed.cluster import REPOSITORY
from slurm.testbed.sites import SITES


def test_every_preset_of_a_cluster_has_its_site() -> None:
    presets = {path.stem for path in (REPOSITORY / "configs/cluster").glob("*.yaml")}
    assert presets - {"local", "current", "pbs"} == set(SITES)
