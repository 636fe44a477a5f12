from collections.abc import Callable

import pytest

from train_anywhere.config.schema import Config
from train_anywhere.errors import SubmitError
from train_anywhere.slurm.script.job import make_job
from train_anywhere.slurm.submission.allocation import (
    Allocation,
    fill_from_allocation,
    find_allocation,
    find_mismatches,
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


def test_a_job_can_not_submit() -> None:
    for environ in (
        {"SLURM_JOB_ID": "7", "ENVIRONMENT": "BATCH"},
        {"PBS_JOBID": "7", "PBS_ENVIRONMENT": "PBS_BATCH"},
        {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "8"},
        {"SLURM_JOB_ID": "7", "TRAIN_HOSTS": "node1:2"},
    ):
        with pytest.raises(SubmitError, match="inside job 7"):
            find_allocation(environ)


def test_odd_variables_are_told() -> None:
    for name, value in (
        ("SLURM_JOB_ID", "abc"),
        ("SLURM_JOB_NUM_NODES", "abc"),
        ("SLURM_JOB_NUM_NODES", "-1"),
        ("SLURM_JOB_NUM_NODES", "²"),
        ("SLURM_STEP_NUM_TASKS", "2x"),
        ("SLURM_JOB_CPUS_PER_NODE", "8(x"),
        ("SLURM_GPUS_PER_NODE", "a100:"),
        ("SLURM_GPUS_ON_NODE", "9" * 5000),
    ):
        with pytest.raises(SubmitError, match=rf"^{name}=.* is no.*; unset {name}, or"):
            find_allocation({"SLURM_JOB_ID": "7", name: value})


def test_empty_variables_say_nothing() -> None:
    assert find_allocation({"SLURM_JOB_ID": "", "PBS_JOBID": ""}) is None
    empty = ("SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_CPUS_PER_NODE", "SLURM_GPUS")
    assert find_allocation({"SLURM_JOB_ID": "7", **dict.fromkeys(empty, "")}) == Allocation("7")
    many = {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "8(x99999999999)"}
    assert find_allocation(many) == Allocation("7", 0, 8)


def test_what_does_not_fit_is_said(make_config: Callable[..., Config]) -> None:
    job = make_job(make_config("cluster=slurm", "trainer.nodes=2", "trainer.devices=2"), "/run", "/code")
    assert [*find_mismatches(job, Allocation("7", 2, 8))] == []
    assert ["use trainer.nodes=3" in p for p in find_mismatches(job, Allocation("7", 3, 8))] == [True]
    assert ["4 CPUs each do not fit" in p for p in find_mismatches(job, Allocation("7", 2, 7))] == [True]


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
