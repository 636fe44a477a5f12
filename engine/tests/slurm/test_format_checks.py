"""Facts of a preset are checked before anything else, with the key in each message."""

from typing import Any

import pytest
import yaml

from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load
from train_anywhere.errors import ConfigError
from train_anywhere.slurm.script.job import make_job

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
