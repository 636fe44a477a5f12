from collections.abc import Callable

from train_anywhere.config.schema import Config
from train_anywhere.slurm.script.job import make_job
from train_anywhere.slurm.submission.allocation import (
    Allocation,
    fill_from_allocation,
    find_allocation,
    missing_variables,
)


def test_a_login_node_is_no_allocation() -> None:
    assert find_allocation({"PATH": "/bin"}) is None


def test_salloc_and_interactive_jobs() -> None:
    for environ, expected in (
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, Allocation("7", 2)),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}, Allocation("7", 2)),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_CPUS_PER_NODE": "8(x2),4"}, Allocation("7", 3, 4)),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_PER_NODE": "a100:4"}, Allocation("7", 2, 0, 4)),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS": "3"}, Allocation("7", 2)),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS": "3"}, Allocation("7", 1, 0, 3)),
        ({"PBS_JOBID": "7.server", "PBS_ENVIRONMENT": "PBS_INTERACTIVE"}, Allocation("7.server", 0)),
    ):  # fmt: skip
        assert find_allocation(environ) == expected


def test_an_allocation_that_can_not_be_used_is_named() -> None:
    part = {"SLURM_JOB_ID": "7"}
    whole = {**part, "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_NUM_NODES": "1"}
    assert missing_variables(whole) == []
    assert "knows only a part" in missing_variables(part)[0]
    assert "SLURM_JOB_ID=7 is a heterogeneous job" in missing_variables({**part, "SLURM_HET_SIZE": "2"})[0]


def test_empty_variables_say_nothing() -> None:
    assert find_allocation({"SLURM_JOB_ID": "", "PBS_JOBID": ""}) is None
    empty = ("SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_CPUS_PER_NODE", "SLURM_GPUS")
    assert find_allocation({"SLURM_JOB_ID": "7", **dict.fromkeys(empty, "")}) == Allocation("7")
    many = {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "8(x99999999999)"}
    assert find_allocation(many) == Allocation("7", 0, 8)


def test_the_ranks_share_the_cpus_of_the_allocation(make_config: Callable[..., Config]) -> None:
    config = make_config("cluster=slurm", "strategy=ddp", "trainer.devices=2")
    assert fill_from_allocation(config, Allocation("7", 1, 9)).cluster.cpus_per_task == 4
    assert fill_from_allocation(config, Allocation("7", 1, 1)).cluster.cpus_per_task == 1
    assert fill_from_allocation(config, None) is config


def test_auto_is_the_gpus_of_the_allocation(make_config: Callable[..., Config]) -> None:
    here = Allocation("7", 1, 8, 4)
    # not the eight of a node
    assert fill_from_allocation(make_config("cluster=neuron"), here).trainer.devices == 4
    assert fill_from_allocation(make_config("cluster=neuron"), here).cluster.cpus_per_task == 2
    for given in ("trainer.devices=2", "trainer.total_devices=3", "strategy=single"):
        config = make_config("cluster=neuron", given)
        jobs = [make_job(c, "/run", "/code").devices for c in (config, fill_from_allocation(config, here))]
        assert jobs[0] == jobs[1]
