"""Any host list, any environment: the place of a rank, or one sentence."""

import re
import shutil
import string
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tests.properties.cases import DIGITS, TEXT, bounded
from train_anywhere.distributed.discover import discover
from train_anywhere.distributed.topology import Topology, expand_hosts, fold_hosts
from train_anywhere.errors import TopologyError

NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


@bounded(400)
@given(
    st.text(
        DIGITS | st.sampled_from("na0123[]-,. \t\n²٣(x)") | st.characters(exclude_categories=["Cs"]),
        max_size=9,
    )
)
def test_any_text_is_a_list_of_hosts_or_refused(hosts: str) -> None:
    try:
        names = expand_hosts(hosts)
    except TopologyError as error:
        assert "\n" not in str(error).replace(hosts, "")
        return
    assert names
    assert all(NAME.fullmatch(name) for name in names), names


@st.composite
def host_lists(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A list in Slurm's notation, and the names it means."""
    parts, names = [], []
    for _ in range(draw(st.integers(1, 3))):
        head = draw(st.text(string.ascii_lowercase, min_size=1, max_size=4))
        spans = draw(
            st.lists(st.tuples(st.integers(0, 120), st.integers(0, 3), st.integers(1, 4)), max_size=3)
        )
        numbers = [f"{n:0{width}}" for low, more, width in spans for n in range(low, low + more + 1)]
        written = [f"{low:0{w}}" + (f"-{low + more:0{w}}" if more else "") for low, more, w in spans]
        parts.append(head + (f"[{','.join(written)}]" if spans else ""))
        names += [head + n for n in numbers] if spans else [head]
    return ",".join(parts), names


@bounded()
@given(host_lists())
def test_a_list_of_hosts_is_read_as_it_was_written(pair: tuple[str, list[str]]) -> None:
    assert expand_hosts(pair[0]) == pair[1]
    names = dict.fromkeys(pair[1])
    assert sorted(expand_hosts(fold_hosts(names))) == sorted(names)


@pytest.mark.slurm
def test_scontrol_reads_the_same(require, tmp_path, monkeypatch) -> None:
    require(shutil.which("scontrol"), "apt-get install slurm-client")
    config = tmp_path / "slurm.conf"
    config.write_text("ClusterName=none\nSlurmctldHost=localhost\n")
    monkeypatch.setenv("SLURM_CONF", str(config))

    @bounded(20)
    @given(host_lists())
    def agrees(pair: tuple[str, list[str]]) -> None:
        shown = subprocess.run(["scontrol", "show", "hostnames", pair[0]], capture_output=True, text=True)
        assert shown.stdout.split() == pair[1], shown.stderr

    agrees()


VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
    "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES",
    "TRAIN_HOSTS", "PMI_SIZE", "PMI_RANK",
)  # fmt: skip
GROUPS = [
    [v for v in VARIABLES if v.startswith(p)] for p in ("", "RANK", "LOCAL", "HOROVOD", "OMPI", "SLURM")
]
VALUES = (
    st.sampled_from(["0", "1", "2", "1,1", "2(x2)", "n1:1,n2:1", "n[1-2]", "", "/", "²", "-1", "٣", "x"])
    | TEXT
)


@bounded(300)
@given(
    st.sampled_from(GROUPS).flatmap(lambda g: st.fixed_dictionaries({}, optional=dict.fromkeys(g, VALUES))),
    st.booleans(),
)
def test_any_environment_is_a_place_or_refused(env: dict[str, str], whole: bool) -> None:
    if whole:  # all of a launcher's variables, so that they contradict each other
        env = {**dict.fromkeys(GROUPS[1] + GROUPS[3] + GROUPS[4], "1"), **env}
    try:
        place = discover(env)
    except TopologyError as error:
        assert str(error)
        return
    assert 0 <= place.rank < place.world_size
    assert 0 <= place.local_rank < place.local_world_size
    assert 0 <= place.node_rank < place.nodes
    assert isinstance(place, Topology)
