import pytest

from slurm.current import name_current, patterns
from src.errors import ConfigError


@pytest.mark.parametrize(
    ("host", "preset"), [("narval3", "narval"), ("glogin01", "neuron"), ("alvis2.c3se", "alvis")]
)
def test_the_preset_of_a_login_node(host: str, preset: str) -> None:
    assert name_current(["cluster=current", "seed=1"], [host]) == [f"cluster={preset}", "seed=1"]


def test_an_unknown_machine_is_refused_with_the_presets() -> None:
    with pytest.raises(ConfigError, match=r"laptop.*is no login node.*narval"):
        name_current(["cluster=current"], ["laptop"])


def test_no_two_presets_share_a_login_node() -> None:
    examples = [p.replace("*", "1").replace("?", "1") for wanted in patterns().values() for p in wanted]
    assert all(name_current(["cluster=current"], [host]) for host in examples)
