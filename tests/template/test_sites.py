"""The Slurm of the tests can stand for every site of a preset."""

from slurm.testbed.cluster import REPOSITORY
from slurm.testbed.sites import SITES


def test_every_site_has_its_preset() -> None:
    presets = {path.stem for path in (REPOSITORY / "configs/cluster").glob("*.yaml")}
    assert set(SITES) <= presets
