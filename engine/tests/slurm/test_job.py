"""A job's request and its facts: sizes, memory, when it may begin."""

import subprocess
import sys
from collections.abc import Callable
from operator import attrgetter

import pytest

from train_anywhere.config.command.compose import compose, quote_value
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.files import ROOT
from train_anywhere.slurm.script import units
from train_anywhere.slurm.script.job import Job, describe_gpu_hours, gpu_hours, join_constraints, make_job
from train_anywhere.slurm.script.render import render
from train_anywhere.slurm.submission.submit import format_job

MakeConfig = Callable[..., Config]


@pytest.fixture
def job(make_config: MakeConfig) -> Callable[..., Job]:
    return lambda *words, members=None: make_job(make_config(*words), "/run", "/run/code", members)


UNEVEN = "cluster=technion trainer.nodes=2 trainer.total_devices=3"
A100 = "cluster=ibex cluster.gpu_type=a100"
JOBS: list[tuple[str, str, object]] = [
    # auto is the whole node of the preset
    ("cluster=neuron trainer.nodes=4", "ranks tasks cpus_per_task world_size", ((8, 8, 8, 8), 32, 8, 32)),
    # torchrun is one task per node with the CPUs of its ranks
    ("cluster=alvis trainer.nodes=2 cluster.cpus_per_task=3", "launch tasks tasks_per_node cpus_of_task", ("torchrun", 2, 1, 12)),
    # an uneven job has a task per rank however it is launched
    *((f"{UNEVEN} launch={launch}", "ranks tasks even", ((2, 1), 3, False)) for launch in ("srun", "torchrun", "mpirun")),
    # a strategy of one process gets one task with all GPUs
    (
        "cluster=neuron framework=keras trainer.devices=4", "layout.strategy ranks devices tasks cpus_per_task",
        ("mirrored", (1,), (4,), 1, 32),
    ),
    ("cluster=neuron strategy=single", "devices", ((1,),)),
    # memory is the share of the GPUs, if the site does not refuse --mem
    ("cluster=narval trainer.devices=1", "mem", (498 * 1024 // 4,)),
    ("cluster=narval trainer.devices=1 cluster.mem=10G", "mem", (10 * 1024,)),
    ("cluster=narval trainer.devices=2 cluster.mem_per_gpu=10G", "mem", (20 * 1024,)),
    ("cluster=neuron", "mem", (None,)),
    ("cluster=pbs cluster.mem_per_cpu=6G cluster.cpus_per_task=5 trainer.devices=2", "mem", (60 * 1024,)),
    # the node that has enough GPUs of the type, CPUs or memory
    (f"{A100} trainer.devices=4", "node.cpus", (62,)),
    (f"{A100} trainer.devices=8", "node.cpus", (126,)),
    ("cluster=neuron cluster.partition=cas_v100_2", "node.gpus", (2,)),
    (f"{A100} trainer.devices=4 strategy=ddp cluster.cpus_per_task=30", "node.cpus", (126,)),
    (f"{A100} trainer.devices=4 strategy=ddp cluster.mem=900G", "node.cpus", (126,)),
    (f"{A100} trainer.devices=4 strategy=ddp cluster.cpus_per_task=60", "node.cpus", (62,)),  # none has them
    # a constraint may name the type
    ("cluster=ibex cluster.gpu_type=null trainer.devices=4 cluster.constraint='[a100|x]'", "node.gpu_type", ("a100",)),
    ("cluster=ibex cluster.gpu_type=null trainer.devices=4 cluster.constraint=[ib,a100]", "node.gpu_type", ("a100",)),
]  # fmt: skip
"""Keys of a job, and facts of it."""


@pytest.mark.parametrize(("words", "names", "expected"), JOBS)
def test_facts_of_a_job(
    job: Callable[..., Job], words: str, names: str, expected: tuple[object, ...]
) -> None:
    made = job(*words.split())
    assert tuple(attrgetter(name)(made) for name in names.split()) == expected


def test_a_job_in_several_partitions_fits_the_smallest_node(job: Callable[..., Job]) -> None:
    made = job("cluster=neuron", "cluster.partition=amd_a100nv_8,cas_v100_4")
    assert (made.node.gpus, made.devices, made.cpus_per_task) == (4, (4,), 10)
    assert "#SBATCH --partition=amd_a100nv_8,cas_v100_4\n" in render(made)
    assert job("cluster=neuron", "cluster.partition=amd_a100nv_8,koni").node is None
    both = ("cluster=snellius", "cluster.partition=gpu_a100,gpu_h100")
    made = job(*both, "trainer.devices=4", "strategy=ddp")
    assert (made.mem, made.cpus_per_task) == (480 * 1024, 64 // 4)
    assert job(*both, "cluster.mem=700G").node.partition == "gpu_h100"  # the others can't have it
    limits = job("cluster=lumi", "cluster.partition=dev-g,standard-g", "trainer.devices=8").node
    assert limits.max_time == "2-00:00:00"


def test_the_partition_of_the_shell_selects_the_node(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "cas_v100_2")
    made = job("cluster=neuron", "cluster.partition=null")
    assert (made.node.gpus, made.devices, made.cluster.partition) == (2, (2,), "cas_v100_2")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("v100", "v100"),
        ("[v100,ib]", "v100&ib"),
        ("[a|b,c]", "(a|b)&c"),
        ("[x,x]", "x"),
        ("null", None),
        ("[rack1|rack2]", "[rack1|rack2]"),
        ("[GPU_MEM:16GB|GPU_MEM:24GB]", "[GPU_MEM:16GB|GPU_MEM:24GB]"),
        ("[rack1*2&rack2*4]", "[rack1*2&rack2*4]"),
        ("['rack1*2&rack2*4']", "[rack1*2&rack2*4]"),
        ("['(a|b)&c']", "(a|b)&c"),
        ("['[a|b]',c]", "[a|b]&c"),
        ("[d,'(a&b)|c']", "(a&b)|c&d"),  # from left to right
        ("['a|(b&c)',d]", "a|(b&c)&d"),
    ],
)
def test_constraints_are_joined(make_config: MakeConfig, given: str, expected: str | None) -> None:
    assert join_constraints(make_config("cluster=slurm", f"cluster.constraint={given}").cluster) == expected


def test_all_unreadable_numbers_at_once(job: Callable[..., Job]) -> None:
    with pytest.raises(ConfigError) as error:
        job("cluster=slurm", "cluster.time=soon", "cluster.mem=much")
    assert len(error.value.problems) == 2


def test_the_time_of_a_preset_written_without_quotes_is_noticed(job: Callable[..., Job]) -> None:
    import yaml

    assert yaml.safe_load("time: 24:00:00") == {"time": 86400}  # why the guard is there
    with pytest.raises(ConfigError, match='quotes, "24:00:00"; for 86400 minutes write "1440:00:00"'):
        make_job(load(compose(["cluster=slurm", "cluster.time=86400"])), "/run", "/run/code")
    # on the command line they are minutes
    assert "#SBATCH --time=72:00:00\n" in render(job("cluster=slurm", "cluster.time=4320"))


def test_no_limits_in_words(job: Callable[..., Job]) -> None:
    unlimited = format_job(job("cluster=slurm", "cluster.mem=0", "cluster.time=0"))
    assert "memory      all of each node" in unlimited and "time        no limit" in unlimited


def test_environments_are_found_from_the_job_s_folder(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for given, line in {
        "venv=~/env": "source /home/me/env/bin/activate",
        "venv=.venv": f"source {ROOT}/.venv/bin/activate",
        "venv=$SLURM_TMPDIR/env": 'source "$SLURM_TMPDIR/env"/bin/activate',
        "conda=~/env": "conda activate /home/me/env",
        "conda=base": "conda activate base",
        "local_disk=~/x/$USER": 'export TRAIN_LOCAL_DISK="/home/me/x/$USER"',
    }.items():
        assert line in render(job("cluster=slurm", quote_value(f"cluster.{given}"))).splitlines()


def test_a_job_that_wants_nothing_beside_its_ranks_starts_nothing(job: Callable[..., Job]) -> None:
    none = ("monitor.sample_seconds=null", "monitor.hang_minutes=null")
    for words, starts in [
        (none, False),
        (("trainer.fast_dev_run=true",), False),
        ((*none, "monitor.serve=true"), True),
        ((), True),
    ]:
        made = job("cluster=slurm", *words)
        assert made.features.on_node == starts == (" --monitor " in render(made))


@pytest.mark.needs_root
def test_a_user_without_a_name_is_a_number() -> None:
    """The user's name is unknown in a container or with a broken directory service."""
    program = "import os, pwd, getpass; from train_anywhere.slurm.rules.job_rules import user_name; os.setuid(54321); print(user_name())"
    unset = [word for name in ("USER", "LOGNAME", "LNAME", "USERNAME") for word in ("-u", name)]
    done = subprocess.run(
        ["env", *unset, sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == "54321\n", done.stderr


TIMES = [
    *("20:00", "9:30:15", "midnight", "tomorrow", "now", "now+3600", "now+2days", "2026-12-01"),
    "2026-12-01T08:00:30",
]
NEVER = [
    *("later", "25:00", "1200", "now+", "now+1month", "2026-13-01", "2026-02-31", "01.12.2026", "now+²"),
    "9" * 5000,
]


def test_every_form_of_slurm_and_no_other() -> None:
    assert [units.check_begin_time(text) for text in TIMES] == TIMES
    for text in NEVER:
        with pytest.raises(ValueError, match="is not a start time; use a clock time"):
            units.check_begin_time(text)


def test_qsub_gets_a_date() -> None:
    assert units.to_qsub("2026-12-01T08:00") == "202612010800.00"
    assert units.to_qsub("2026-12-01") == "202612010000.00"
    with pytest.raises(ValueError, match="PBS takes a date"):
        units.to_qsub("20:00")


def test_what_pbs_can_not_be_told(make_config: MakeConfig) -> None:
    asked = make_config("cluster=pbs", "cluster.exclusive=user", "cluster.begin=noon", "cluster.nice=1025")
    with pytest.raises(ConfigError) as caught:
        make_job(asked, "/run", "/run/code")
    named = [p.partition(":")[0].partition("=")[0] for p in caught.value.problems]
    assert named == ["cluster.begin", "cluster.exclusive", "cluster.nice"]
    for key in ("mem", "mem_per_cpu", "time"):
        with pytest.raises(ConfigError, match=f"cluster.{key}=0 has a meaning for Slurm only"):
            make_job(make_config("cluster=pbs", f"cluster.{key}=0"), "/run", "/run/code")


HOURS: list[tuple[str, int | None, float | None]] = [
    ("cluster=slurm trainer.nodes=2 trainer.devices=4 cluster.time=2:00:00", None, 16),
    ("cluster=slurm trainer.nodes=2 trainer.devices=4 cluster.time=2:00:00 cluster.chain=3", None, 48),
    ("cluster=slurm cluster.time=30", 12, 6),
    ("cluster=slurm trainer.nodes=2 trainer.total_devices=3 cluster.time=60", None, 3),
    (
        "cluster=narval cluster.account=def-pi trainer.devices=1 cluster.time=60 cluster.exclusive=true",
        None,
        4,
    ),
    ("cluster=slurm", None, None),
    ("cluster=slurm cluster.time=0", None, None),
    ("cluster=slurm trainer.accelerator=cpu cluster.time=60", None, None),
]
"""Keys of a job, the members of its array, and its GPU hours."""


def test_gpus_times_hours_times_jobs(job: Callable[..., Job]) -> None:
    found = [
        gpu_hours(job(*words.split(), members=number and range(number)))[0] for words, number, _ in HOURS
    ]
    assert found == [hours for *_, hours in HOURS]
    array = job("cluster=slurm", "cluster.time=30", "cluster.requeue=false", members=range(12))
    assert describe_gpu_hours(array) == "up to 6 (1 GPU x 0:30:00 x 12 jobs)"
    requeued = describe_gpu_hours(job("cluster=slurm", "cluster.time=1", "trainer.devices=2"))
    assert requeued == "up to 0.033 (2 GPUs x 0:01:00), and the same after each requeue"
    assert describe_gpu_hours(job("cluster=slurm")) == "not known: cluster.time is not set"
    assert describe_gpu_hours(job("cluster=slurm", "trainer.accelerator=cpu")) == ""
