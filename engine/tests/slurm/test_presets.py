from pathlib import Path
from typing import Any

import pytest
import yaml

from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load
from train_anywhere.errors import ConfigError
from train_anywhere.files.removal import print_once
from train_anywhere.slurm import presets
from train_anywhere.slurm.presets import read_host_patterns, resolve_current
from train_anywhere.slurm.script.job import make_job


@pytest.mark.parametrize(
    ("host", "preset"), [("narval3", "narval"), ("glogin01", "neuron"), ("alvis2.c3se", "alvis")]
)
def test_the_preset_of_a_login_node(host: str, preset: str) -> None:
    assert resolve_current(["cluster=current", "seed=1"], [host]) == [f"cluster={preset}", "seed=1"]


def test_no_two_presets_share_a_login_node() -> None:
    examples = [
        p.replace("*", "1").replace("?", "1") for wanted in read_host_patterns()[0].values() for p in wanted
    ]
    assert all(resolve_current(["cluster=current"], [host]) for host in examples)


BROKEN = {
    "a tab": (b"cluster:\n\tname: x\n", "a tab can't indent"),
    "empty": (b"", "contains nothing"),
    "a list": (b"- a\n", "contains a list"),
    "cluster is a word": (b"cluster: neuron\n", "cluster.site.hosts is not a list of strings"),
    "hosts is a word": (b"cluster: {site: {hosts: login}}\n", "cluster.site.hosts is not a list of strings"),
    "hosts are numbers": (b"cluster: {site: {hosts: [1]}}\n", "cluster.site.hosts is not a list of strings"),
    "no text": (b"\xff\xfe\x00", "is not UTF-8"),
    "an unknown tag": (b"cluster: !!python/object:os.system {}\n", "could not determine a constructor"),
    "a date": (b"cluster: 2024-99-99\n", "cluster.site.hosts is not a list of strings"),
    "deep": (b"[" * 400, "expected the node content"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_preset_is_passed_over_for_those_who_use_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    content, says = BROKEN[name]
    print_once.cache_clear()
    (tmp_path / "bad.yaml").write_bytes(content)
    (tmp_path / "good.yaml").write_text("cluster: {site: {hosts: [gate*]}}\n")
    monkeypatch.setattr(
        presets, "read_host_patterns", lambda: read_host_patterns(sorted(tmp_path.glob("*.yaml")))
    )
    for _ in range(2):
        assert resolve_current(["cluster=current"], ["gate1"]) == ["cluster=good"]
    noted = capsys.readouterr().err
    assert noted.count("note:") == 1
    assert noted.startswith("note: ignored a preset: ") and "bad.yaml" in noted and says in noted
    with pytest.raises(ConfigError, match=r"ignored a preset: .*bad\.yaml"):
        resolve_current(["cluster=current"], ["laptop"])


PRESET = """
name: site
scheduler: slurm
site:
  nodes: [{gpus: 4, cpus: 48, mem: 496G, gpu_mem: 40G, counts: [1, 4]}]
  max_time: 7-00:00:00
  account: "(def|rrg)-.+"
"""


@pytest.fixture(scope="module")
def tree() -> dict[str, Any]:
    return compose(["cluster=slurm"])


def problems(tree: dict[str, Any], preset: str) -> list[str]:
    """Return the messages of a submission with this preset in YAML."""
    given = yaml.safe_load(preset)
    cluster = {**tree["cluster"], **given, "site": {**tree["cluster"]["site"], **given.get("site", {})}}
    try:
        make_job(load({**tree, "cluster": cluster}), "/run", "/run/code")
    except ConfigError as error:
        return error.problems
    return []


def test_a_good_preset(tree: dict[str, Any]) -> None:
    assert problems(tree, PRESET) == []


IMPOSSIBLE = [
    ("7-00:00:00", "48:00:00", 'cluster.site.max_time: 172800 is a number, and sbatch reads a number as minutes; YAML reads'),
    ("7-00:00:00", "0", "cluster.site.max_time=0 must be above 0"),
    ("7-00:00:00", "-5", "cluster.site.max_time=-5 must not be negative."),
    ("7-00:00:00", "1e3000", "cluster.site.max_time: '1e3000' is not a time limit"),
    ("(def|rrg)-.+", "", "cluster.site.account='' is empty; use null for no value."),
    ("cpus: 48", "cpus: 1.5", "cluster.site.nodes[0].cpus='1.5' is not a whole number or null."),
    ("[1, 4]", "[0]", "cluster.site.nodes[0].counts[0]=0 must be at least 1."),
    ("[1, 4]", "4", "cluster.site.nodes[0].counts='4' is not a list (a whole number) or null."),
    ("[{gpus: 4,", "{gpus: 4, #", "is not a list"),
    ("site:", "site:\n  hosts: [[a]]", "cluster.site.hosts[0]='['a']' is not a string."),
    ("site:", "site:\n  notes: [2024-01-01]", "cluster.site.notes[0]='2024-01-01' is not a string; put it in quotes."),
    ("scheduler: slurm", "scheduler: none", "cluster.scheduler=none can't take jobs, and cluster=site submits one"),
    ("scheduler: slurm", "scheduler: pbs\nmem: 0", "cluster.mem=0 has a meaning for Slurm only"),
    ("scheduler: slurm", "scheduler: pbs\nmem_per_cpu: 0", "cluster.mem_per_cpu=0 has a meaning for Slurm only"),
    ("scheduler: slurm", "scheduler: pbs\ntime: 0", "cluster.time=0 has a meaning for Slurm only"),
    ("scheduler: slurm", "scheduler: slurm\nmem_per_gpu: 0", "cluster.mem_per_gpu=0 must be above 0"),
    ("scheduler: slurm", "scheduler: slurm\ntime: 24:00:00", 'cluster.time: 86400 is a number'),
    ("scheduler: slurm", "scheduler: slurm\ncpus_per_task: -4", "cluster.cpus_per_task=-4 must be at least 1."),
    ("scheduler: slurm", "scheduler: slurm\nsignal_seconds: -5", "cluster.signal_seconds=-5 must be at least 1."),
    ("scheduler: slurm", "scheduler: slurm\nsignal_seconds: 70000", "cluster.signal_seconds=70000 must be at most 65535."),
    ("scheduler: slurm", "scheduler: slurm\nmax_running: 0", "cluster.max_running=0 must be at least 1; null is no limit."),
    ("scheduler: slurm", "scheduler: slurm\nchain: 0", "cluster.chain=0 must be at least 1."),
    ("scheduler: slurm", "scheduler: slurm\nqos: ' '", "cluster.qos=' ' is empty; use null for no value."),
]  # fmt: skip
"""What a preset has, what stands there instead, and the message; engine/tests/bad_inputs/rows/clusters.py has more."""


def test_each_fact_that_can_not_be(tree: dict[str, Any]) -> None:
    wrong = []
    for old, new, says in IMPOSSIBLE:
        assert old in PRESET
        text = PRESET.replace(old, new).replace("#", "}\n #") if "#" in new else PRESET.replace(old, new)
        found = problems(tree, text)
        if len(found) != 1 or says not in found[0]:
            wrong.append((new, says, found))
    assert wrong == []


def test_all_of_them_at_once(tree: dict[str, Any]) -> None:
    text = PRESET.replace("496G", "lots").replace("7-00:00:00", "forever").replace("(def|rrg)", "(")
    assert len(problems(tree, text)) == 3


def test_times_that_are_what_they_seem(tree: dict[str, Any]) -> None:
    for minutes in ("2880", '"48:00:00"', "2-00:00:00"):
        assert problems(tree, PRESET.replace("7-00:00:00", minutes)) == []
