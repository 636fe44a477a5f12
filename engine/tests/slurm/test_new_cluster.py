import grp
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from engine.tests.slurm.scripts import tool
from tools.testbed import testbed_config
from tools.testbed.testbed_cluster import Testbed
from train_anywhere.commands import new_cluster
from train_anywhere.commands.new_cluster import make_preset
from train_anywhere.errors import SubmitError
from train_anywhere.slurm import site_facts
from train_anywhere.slurm.site_facts import Kind, SlurmFacts, parse_gpus

KINDS = {
    Kind("gpu", "a100", 4, 128, 515000): 20,
    Kind("gpu", "v100", 2, 40, 190000): 5,
    Kind("old", None, 8, 20, 128000): 1,
}
Slurm = Callable[..., SlurmFacts]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Return what the clients of a machine without Slurm report, with these nodes."""
    monkeypatch.setenv("PATH", "/nothere")

    def report(kinds: dict[Kind, int], max_time: str = "3-00:00:00") -> SlurmFacts:
        facts = SlurmFacts()
        facts.kinds.update(kinds)
        facts.up = facts.usable = {k.partition for k in kinds}
        facts.partitions = {k.partition: {"MaxTime": max_time} for k in kinds}
        return facts

    return report


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:a100:4(S:0-1)", [("a100", 4)]),
        ("gpu:v100:2,tmpdisk:800", [("v100", 2)]),
        ("gpu:a100:2(S:0,2),gpu:a100_3g.20gb:4(S:1)", [("a100", 2), ("a100_3g.20gb", 4)]),
        ("gpu:8", [(None, 8)]),
        ("gpu:0,gpu:a100:0", []),
        ("(null)", []),
    ],
)
def test_gpus_of_a_node(gres: str, gpus: list[tuple[str | None, int]]) -> None:
    assert list(parse_gpus(gres)) == gpus


def test_the_preset_is_read_back(slurm: Slurm) -> None:
    tree = yaml.safe_load(make_preset("mine", slurm(KINDS), None, "login03.example.org"))
    assert tree["cluster"]["partition"] == "gpu"
    assert tree["cluster"]["gpu_type"] == "a100"
    assert tree["cluster"]["site"]["hosts"] == ["login*"]
    assert tree["cluster"]["site"]["max_time"] == "3-00:00:00"  # quoted: not a number
    first = {"partition": "gpu", "gpu_type": "a100", "gpus": 4, "cpus": 128, "mem": "515000M"}
    assert tree["cluster"]["site"]["nodes"][0] == first


def test_a_preset_from_a_host_has_what_is_made_here_and_nothing_else(slurm: Slurm) -> None:
    good = make_preset("mine", slurm(KINDS), None, "login03.example.org")
    assert new_cluster._is_preset(good)
    for line in ("callbacks: {a: {_target_: os.system}}\n", "a: [\n", "a: &a [*a]\n"):
        assert not new_cluster._is_preset(good + line), line
    odd = (
        good.replace("- slurm", "- ../../x"),
        good.replace("  partition:", "  setup: [evil]\n  partition:"),
    )
    for text in ("", "Welcome", "[]", "cluster: 1", "{" * 9999, *odd):
        assert not new_cluster._is_preset(text), text[:40]


def test_each_partition_keeps_its_limit_and_the_longest_is_the_site_s(slurm: Slurm) -> None:
    facts = slurm({**KINDS, Kind("long", None, 2, 20, 128000): 1}, "2-00:00:00")
    facts.partitions["long"]["MaxTime"] = "7-00:00:00"
    site = yaml.safe_load(make_preset("mine", facts, None, "login"))["cluster"]["site"]
    limits = {n["partition"]: n.get("max_time") for n in site["nodes"]}
    assert (site["max_time"], limits) == (
        "7-00:00:00",
        {"gpu": "2-00:00:00", "old": "2-00:00:00", "long": None},
    )
    facts.partitions["long"]["MaxTime"] = "UNLIMITED"
    site = yaml.safe_load(make_preset("mine", facts, None, "login"))["cluster"]["site"]
    assert "max_time" not in site
    assert {n["partition"]: n.get("max_time") for n in site["nodes"]} == limits


def settings(**changed: str) -> dict[str, str]:
    """The settings of a partition as scontrol prints them, with changes."""
    usual = {"AllowGroups": "ALL", "AllowAccounts": "ALL", "RootOnly": "NO", "State": "UP"}
    return (
        usual
        | {"MaxTime": "UNLIMITED", "MaxCPUsPerNode": "UNLIMITED", "MaxMemPerNode": "UNLIMITED"}
        | changed
    )


@pytest.mark.parametrize(
    ("changed", "usable"),
    [
        ({}, True),
        ({"RootOnly": "YES", "Hidden": "YES"}, False),
        ({"AllowGroups": "zzq_admins"}, False),
        ({"AllowGroups": f"zzq_admins,{grp.getgrgid(os.getgid()).gr_name}"}, True),
        ({"AllowAccounts": "lab-b,lab-c"}, False),
        ({"AllowAccounts": "lab-b,lab-a"}, True),
        ({"AllowAccounts": "faculty"}, True),  # the account above lab-a
    ],
)
def test_partitions_of_other_users_are_left_out(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], usable: bool
) -> None:
    facts = slurm(KINDS | {Kind("maint", "a100", 8, 64, 515000): 99})
    facts.partitions = {"gpu": settings(), "old": settings(), "maint": settings(**changed)}
    facts.accounts = {"lab-a": ""}
    monkeypatch.setattr(facts, "_query", lambda *_: ["lab-a|faculty", "lab-a|", "faculty|root", "root|"])
    facts.usable = facts._find_usable("cluster=x")
    tree = yaml.safe_load(make_preset("mine", facts, None, "login"))
    assert tree["cluster"]["partition"] == ("maint" if usable else "gpu")
    facts.accounts = {}  # unknown
    assert ("maint" in facts._find_usable("cluster=x")) == (usable or "AllowAccounts" in changed)


def test_the_limits_of_a_partition_count_for_its_nodes(slurm: Slurm) -> None:
    facts = slurm({})
    facts.partitions = {"gpu": settings(), "part": settings(MaxCPUsPerNode="16", MaxMemPerNode="64000")}
    node = {"CPUTot": "128", "ThreadsPerCore": "2", "RealMemory": "515000", "Gres": "gpu:a100:4"}
    facts._add_node(node | {"Partitions": "gpu,part"})
    assert {*facts.kinds} == {
        Kind("gpu", "a100", 4, 128, 515000),
        Kind("part", "a100", 4, 16, 64000),
    }


def test_another_partition(slurm: Slurm) -> None:
    tree = yaml.safe_load(make_preset("mine", slurm(KINDS), "old", "login"))
    assert (tree["cluster"]["partition"], "gpu_type" in tree["cluster"]) == ("old", False)
    with pytest.raises(SubmitError, match="those with GPUs: gpu, old"):
        make_preset("mine", slurm(KINDS), "cpu", "login")


def test_odd_words_of_slurm_stay_words_in_the_preset(slurm: Slurm) -> None:
    odd = {Kind("on", "1g.5gb", 7, 4, 1000): 1}
    tree = yaml.safe_load(make_preset("mine", slurm(odd, "UNLIMITED"), None, "007"))
    assert (tree["cluster"]["partition"], tree["cluster"]["gpu_type"]) == ("on", "1g.5gb")
    assert tree["cluster"]["site"]["hosts"] == ["007"]  # not every machine
    assert "max_time" not in tree["cluster"]["site"]
    odd = {Kind('a: "b', "x{", 2, 4, 1000): 1}
    tree = yaml.safe_load(make_preset("mine", slurm(odd, "n/a"), None, "login"))
    assert tree["cluster"]["site"]["nodes"][0]["gpu_type"] == "x{"


CONF = """
NodeName=node1 Sockets=1 CoresPerSocket=64 ThreadsPerCore=2 RealMemory=500000 MemSpecLimit=8000 CoreSpecCount=2 Gres=gpu:a100:8 Features=big
NodeName=node2 Sockets=1 CoresPerSocket=48 ThreadsPerCore=1 RealMemory=250000 Gres=gpu:a100:4,gpu:a100_3g.20gb:4
NodeName=node3 Sockets=1 CoresPerSocket=64 RealMemory=300000 Gres=gpu:8
NodeName=node4 Sockets=1 CoresPerSocket=32 RealMemory=100000
AccountingStorageEnforce=associations,limits,qos
PartitionName=main Nodes=node4 Default=YES
PartitionName=gpu Nodes=node1,node2 MaxTime=2-00:00:00
PartitionName=plain Nodes=node3 MaxTime=UNLIMITED
PartitionName=closed Nodes=node3 State=DOWN
PartitionName=maint Nodes=node1,node2,node3 MaxTime=UNLIMITED RootOnly=YES Hidden=YES
PartitionName=lab Nodes=node1,node3 MaxTime=UNLIMITED AllowAccounts=team-b
PartitionName=scavenge Nodes=node4
PartitionName=preemptible Nodes=node4
PartitionName=urgent Nodes=node4
"""
"""Nodes with reserved CPUs and memory, with slices of GPUs, with GPUs without a type, and without GPUs."""

GRES = """
NodeName=node1 Name=gpu Type=a100 File={0}/dev/nvidia[0-7]
NodeName=node2 Name=gpu Type=a100 File={0}/dev/nvidia[0-3]
NodeName=node2 Name=gpu Type=a100_3g.20gb File={0}/dev/nvidia[4-7]
NodeName=node3 Name=gpu File={0}/dev/nvidia[0-7]
"""

EXPECTED = {
    "partition": "gpu",
    "gpu_type": "a100",
    "nodes": [
        {"partition": "gpu", "gpu_type": "a100", "gpus": 8, "cpus": 124, "mem": "492000M", "max_time": "2-00:00:00"},
        {"partition": "plain", "gpus": 8, "cpus": 64, "mem": "300000M"},
        {"partition": "gpu", "gpu_type": "a100", "gpus": 4, "cpus": 48, "mem": "250000M", "max_time": "2-00:00:00"},
        {"partition": "gpu", "gpu_type": "a100_3g.20gb", "gpus": 4, "cpus": 48, "mem": "250000M", "max_time": "2-00:00:00"},
    ],
}  # fmt: skip
"""Without reserved CPUs and memory, and without the partitions that are down, hidden, or another team's."""

SACCTMGR = {
    "real": None,
    "missing": "",
    "failing": "echo no database >&2; exit 1",
    "hanging": "/bin/sleep 1000",
    "printing nonsense": "echo welcome; echo '|'; echo 'a|b|c|d|e|f'",
}


@pytest.fixture(scope="session")
def site(testbed_for: Callable[..., Testbed]) -> Testbed:
    """Start once per process, because an account can be added only once."""

    def write_all(layout: testbed_config.Layout) -> None:
        write(layout)
        (layout.dir / "etc" / "slurm" / "gres.conf").write_text(GRES.format(layout.dir))

    write = testbed_config.write_all
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(testbed_config, "write_all", write_all)
        testbed = testbed_for("technion", accounting=True, conf=CONF)
    for command in ("add account team-a", "add user root account=team-a"):
        done = testbed.run(["sacctmgr", "-i", *command.split()])
        assert done.returncode == 0, done.stdout + done.stderr
    return testbed


@pytest.mark.slurm
@pytest.mark.needs_root
@pytest.mark.parametrize("sacctmgr", SACCTMGR)
@pytest.mark.quick("real")
def test_a_real_slurm(
    site: Testbed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sacctmgr: str,
) -> None:
    """The preset is what Slurm reports. Without an answer about accounts, any partition may be open."""
    monkeypatch.setenv("PATH", site.env()["PATH"])
    if (body := SACCTMGR[sacctmgr]) is not None:
        monkeypatch.setattr(site_facts, "TIMEOUT_S", 2.0)
        for program in (*(site.dir / "bin").iterdir(), Path("/usr/bin/sed"), Path("/usr/bin/nsenter")):
            if program.name != "sacctmgr":
                (tmp_path / program.name).symlink_to(program)
        if body:
            tool(tmp_path / "sacctmgr", body)
        monkeypatch.setenv("PATH", str(tmp_path))
    assert new_cluster.main(["mine"]) == 0
    cluster = yaml.safe_load(capsys.readouterr().out)["cluster"]
    nodes = [n for n in cluster["site"]["nodes"] if n["partition"] != "lab" or body is None]
    assert {k: {**cluster, "nodes": nodes}[k] for k in EXPECTED} == EXPECTED
