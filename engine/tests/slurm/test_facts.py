"""A preset is compared with a real Slurm."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.testbed import testbed_config
from tools.testbed.testbed_cluster import Testbed
from tools.testing.projects import copy_project
from train_anywhere.commands import doctor, new_cluster
from train_anywhere.config.schema import Config
from train_anywhere.slurm import site_facts
from train_anywhere.slurm.presets import stale_facts_notes

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]

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

PRESET = """\
# @package _global_
# A site.
defaults:
  - slurm
  - _self_
cluster:
  name: testsite
  partition: gpu  # the usual one
  gpu_type: a100
  qos: week
  constraint: big
  site:
    source: "its pages"
    checked: 2026-01  # by hand
    login: login.example.org
    nodes:
      # two kinds of nodes, and slices
      - {partition: gpu, gpu_type: a100, gpus: 8, cpus: 124, mem: 492000M, gpu_mem: 80G, max_time: 2-00:00:00}  # of 128
      - {partition: gpu, gpu_type: a100, gpus: 4, cpus: 48, mem: 244G}
      - {partition: gpu, gpu_type: a100_3g.20gb, gpus: 4}
      - partition: plain
        gpus: 8
        mem: 300000
    max_time: 7-00:00:00  # by a quality of service
    max_gpus: 12
    account: "team-.+"
    account_example: team-a
    needs_gpu_type: true
"""

Compare = Callable[[], tuple[int, str, str]]

FITS = "No difference.\nnot checked: account_example, gpu_mem, login\n"

SETUP = (
    "sacctmgr -i add account team-a",
    "sacctmgr -i add user root account=team-a",
    "sacctmgr -i add qos week set MaxWall=7-00:00:00 MaxTRESPU=gres/gpu=12",
)

PLANTED = {
    "GPUs of a node": ("gpus: 8, cpus: 124", "gpus: 6, cpus: 124", "nodes[0].gpus: 6 in the preset, 8 in Slurm (scontrol show nodes)"),
    "a new name of the GPUs": ("gpu_type: a100", "gpu_type: A100", "gpu_type: A100 in the preset, a100"),
    "slices that are gone": ("a100_3g.20gb", "a100_1g.5gb", "nodes[2].gpu_type: a100_1g.5gb in the preset, a100_3g.20gb"),
    "CPUs with the reserved ones": ("cpus: 124", "cpus: 128", "nodes[0].cpus: 128 in the preset, 124"),
    "memory with the reserved part": ("mem: 492000M", "mem: 500000M", "nodes[0].mem: 500000M in the preset, 492000M"),
    "memory of an older node": ("mem: 300000", "mem: 128G", "nodes[3].mem: 128G in the preset, 300000M"),
    "a new name of a partition": ("partition: plain", "partition: simple", "nodes[3].partition: simple in the preset, plain"),
    "a kind that is gone": ("plain\n        gpus: 8", "old\n        gpus: 2", "[3]: old in the preset, no such partition"),
    "the default partition is gone": ("partition: gpu  #", "partition: main2  #", "main2: no such partition"),
    "a default partition without GPUs": (
        "  partition: gpu  # the usual one\n  gpu_type: a100\n  qos: week\n  constraint: big\n",
        "  gpu_type: a100\n",
        "cluster.partition: None in the preset, main: no GPUs",
    ),
    "a partition that is closed": ("partition: plain", "partition: closed", "nodes[3].partition: closed in the preset, plain"),
    "the limit of a partition": ("max_time: 2-00", "max_time: 3-00", 'max_time: 3-00:00:00 in the preset, 48:00:00 in Slurm'),
    "the longest job": ("max_time: 7-00", "max_time: 6-00", "site.max_time: 6-00:00:00 in the preset, "),
    "a quality of service that is gone": ("qos: week", "qos: month", "cluster.qos: month in the preset, no such QOS"),
    "GPUs of a user": ("max_gpus: 12", "max_gpus: 16", "site.max_gpus: 16 in the preset, 12 in Slurm (sacctmgr show qos)"),
    "a feature that is gone": ("constraint: big", "constraint: big&huge", "cluster.constraint: big&huge in the preset, no huge"),
    "the form of accounts": ("team-.+", "proj-.+", "site.account: proj-.+ in the preset, your team-a in Slurm (sacctmgr"),
}  # fmt: skip
"""A change of the preset, and what the comparison prints."""

CHANGED_IN_SLURM = {
    "a partition goes down": ("scontrol update PartitionName=plain State=%s", "DOWN", "UP", "nodes[3]: plain in the preset, DOWN in Slurm"),
    "a shorter limit": ("scontrol update PartitionName=gpu MaxTime=%s", "1-0", "2-0", "preset, 24:00:00 in Slurm (scontrol"),
    "fewer GPUs for a user": ("sacctmgr -i modify qos week set MaxTRESPU=gres/gpu=%s", "8", "12", "site.max_gpus: 12 in the preset, 8"),
}  # fmt: skip
"""A setting of Slurm, its new and old value, and what the comparison prints."""


class Site:
    """A project with a preset, on the login node of its site."""

    def __init__(self, testbed: Testbed, project: Path) -> None:
        self.testbed, self.project = testbed, project
        self.preset = project / "configs" / "cluster" / "testsite.yaml"

    def facts(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "train_anywhere", "doctor", *words, "--facts"]
        return subprocess.run(
            command,
            cwd=self.project,
            env={**self.testbed.env(), "PYTHONPATH": str(self.project / "engine")},
            capture_output=True,
            text=True,
            timeout=100,
        )


@pytest.fixture(scope="session")
def site(testbed_for: Callable[..., Testbed], tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Start once per process, because an account can be added only once."""

    def write_all(layout: testbed_config.Layout) -> None:
        write(layout)
        (layout.dir / "etc" / "slurm" / "gres.conf").write_text(GRES.format(layout.dir))

    write = testbed_config.write_all
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(testbed_config, "write_all", write_all)
        testbed = testbed_for("technion", accounting=True, conf=CONF)
    for command in SETUP:
        done = testbed.run(command.split())
        assert done.returncode == 0, done.stdout + done.stderr
    return Site(testbed, copy_project(tmp_path_factory.mktemp("facts")))


@pytest.fixture
def differences(site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Compare:
    """Return a comparison in this process: exit code, output and errors."""
    monkeypatch.setenv("PATH", site.testbed.env()["PATH"])
    monkeypatch.setattr(doctor, "ROOT", site.project)
    site.preset.write_text(PRESET)

    def compare() -> tuple[int, str, str]:
        code = doctor.print_differences(site.preset)
        return code, *capsys.readouterr()

    return compare


def test_the_command_with_a_preset_that_fits(site: Site) -> None:
    site.preset.write_text(PRESET)
    done = site.facts("cluster=testsite")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout, done.stderr) == (FITS, "")


def test_a_new_preset_has_no_differences(
    site: Site, differences: Compare, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new_cluster.main(["testsite"]) == 0
    site.preset.write_text(capsys.readouterr().out)
    assert differences() == (0, "No difference.\nnot checked: hosts\n", "")


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.quick("slices that are gone", "memory of an older node", "the longest job", "GPUs of a user")
def test_a_planted_change_is_found(site: Site, differences: Compare, name: str) -> None:
    old, new, says = PLANTED[name]
    assert old in PRESET
    site.preset.write_text(PRESET.replace(old, new))
    found(differences, says)


@pytest.mark.parametrize("name", CHANGED_IN_SLURM)
def test_a_change_of_the_site_is_found(site: Site, differences: Compare, name: str) -> None:
    command, new, old, says = CHANGED_IN_SLURM[name]
    assert site.testbed.run((command % new).split()).returncode == 0
    try:
        found(differences, says)
    finally:
        site.testbed.run((command % old).split())


def found(differences: Compare, says: str) -> None:
    """The difference is printed."""
    code, printed, errors = differences()
    assert (code, errors) == (1, "")
    assert says in printed


def test_all_changes_at_once(site: Site, differences: Compare) -> None:
    changed = PRESET
    for old, new, _ in PLANTED.values():
        changed = changed.replace(old, new, 1)
    site.preset.write_text(changed)
    found(differences, "cluster.qos: month in the preset")


def test_a_site_that_may_pick_the_partition_by_a_constraint_gets_none(
    site: Site, differences: Compare
) -> None:
    site.preset.write_text(PRESET.replace("  partition: gpu  # the usual one\n", ""))
    code, printed, errors = differences()
    assert (code, errors) == (1, "")
    assert printed.count("cluster.partition: None in the preset, main: no GPUs in Slurm") == 1


def test_another_style_of_yaml(site: Site, differences: Compare) -> None:
    """Nodes in brackets, keys on one line, no end of line, no partition and no date."""
    nodes = "[{partition: gone, gpus: 2}, {partition: gpu, gpus: 6, cpus: 124}, {partition: gone, gpus: 1}]"
    site.preset.write_text(
        "# @package _global_\ndefaults: [slurm, _self_]\ncluster:\n  name: testsite\n  constraint:\n"
        f"  - huge\n  site: {{source: its pages, max_time: 1-0, nodes: {nodes}}}  # end"
    )
    found(differences, "cluster.site.nodes[1].gpus: 6 in the preset, 8 in Slurm")


CLIENTS = {
    "missing": ("", "note: sacctmgr is not on this machine"),
    "failing": ("echo no database >&2; exit 1", "note: sacctmgr show qos failed with exit code 1: no database."),
    "hanging": ("/bin/sleep 1000", "note: sacctmgr did not answer within 2 s and was killed."),
    "printing nonsense": ("echo welcome; echo '|'; echo 'a|b|c|d|e|f'", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_that_does_not_answer_is_noted(
    site: Site, differences: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The programs of the testbed without sacctmgr, or with another one."""
    body, says = CLIENTS[name]
    monkeypatch.setattr(site_facts, "TIMEOUT_S", 2.0)
    for program in (*(site.testbed.dir / "bin").iterdir(), Path("/usr/bin/sed"), Path("/usr/bin/nsenter")):
        if program.name != "sacctmgr":
            (tmp_path / program.name).symlink_to(program)
    if body:
        (tmp_path / "sacctmgr").write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "sacctmgr").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    site.preset.write_text(PRESET.replace("gpus: 8, cpus: 124", "gpus: 6, cpus: 124").replace("7-00", "2-00"))
    code, printed, errors = differences()
    assert code == 1 and "nodes[0].gpus: 6 in the preset, 8 in Slurm" in printed
    assert says in errors and bool(says) == bool(errors)
    if says:
        assert "not checked: account, account_example, gpu_mem, login, max_gpus, qos\n" in printed


def test_no_node_of_the_preset_is_left(site: Site, differences: Compare) -> None:
    nodes = "[{partition: gone, gpus: 2}, {partition: gone2, gpus: 3}]"
    for style in (nodes, "\n    - {partition: gone, gpus: 2}\n    - {partition: gone2, gpus: 3}"):
        site.preset.write_text(f"cluster:\n  name: testsite\n  partition: gpu\n  site:\n    nodes: {style}\n")
        found(differences, "cluster.site.nodes[1]: gone2 in the preset, no such partition in Slurm")


def test_no_partition_accepts_jobs(site: Site, differences: Compare) -> None:
    names = ("gpu", "plain")
    try:
        for name in names:
            site.testbed.run(["scontrol", "update", f"PartitionName={name}", "State=DOWN"])
        code, printed, errors = differences()
    finally:
        for name in names:
            site.testbed.run(["scontrol", "update", f"PartitionName={name}", "State=UP"])
    assert (code, errors) == (0, "note: no partition with GPUs is UP and open to your groups and accounts.\n")
    assert "not checked: account_example, cpus, gpu_mem, gpu_type, gpus, login and 3 more\n" in printed


REFUSED = {
    "no preset": ((), "--facts takes nothing but cluster=NAME"),
    "more than a preset": (("cluster=narval", "trainer.nodes=2"), "--facts takes nothing but cluster=NAME"),
    "a preset without facts": (("cluster=slurm",), "slurm.yaml has no facts"),
    "a site with PBS": (("cluster=sockeye_pbs",), "a preset of a site with Slurm"),
    "not a login node": (("cluster=narval",), "sinfo is not on this machine: run this on a login node of narval."),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_comparison_that_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, says = REFUSED[name]
    monkeypatch.setenv("PATH", "/nothere")
    assert doctor.main([*words, "--facts"]) == 2
    printed, errors = capsys.readouterr()
    assert printed == "" and errors.startswith("error: ") and says in errors and errors.count("\n") == 1


@pytest.mark.parametrize(
    ("checked", "old"),
    [
        ("2020-01", True),
        ("2020-01-31", True),
        ("%Y-%m", False),
        ("%Y-%m-%d", False),
        (None, False),
        ("once", False),
    ],
)
def test_old_facts_are_noted_once(
    checked: str | None,
    old: bool,
    make_config: Callable[..., Config],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    value = "null" if checked is None else time.strftime(checked)
    cluster = make_config(
        "cluster=narval", f"cluster.site.checked='{value}'" if checked else "cluster.site.checked=null"
    ).cluster
    compare = "`python -m train_anywhere doctor cluster=narval --facts` compares them with Slurm."
    note = f"the facts about narval were last checked in {value}; {compare}"
    assert stale_facts_notes(cluster) == ([note] if old else [])
    assert stale_facts_notes(cluster) == []
