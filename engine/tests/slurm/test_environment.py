"""Exported variables of the submitting shell change nothing of the job."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tests.properties.cases import bounded, composed
from tools.testbed.testbed_cluster import Testbed
from train_anywhere.config.load import load
from train_anywhere.slurm.scheduler import queue
from train_anywhere.slurm.scheduler.client import submit_script
from train_anywhere.slurm.script import clean_environment
from train_anywhere.slurm.script.job import make_job
from train_anywhere.slurm.script.render import render

SCRIPT = "#!/bin/bash\n#SBATCH --job-name=x\n#SBATCH --partition=main\n"

ASKED = (
    "cluster=slurm", "cluster.time=600", "cluster.mem=2G", "cluster.begin=now+1hour", "trainer.devices=2",
)  # fmt: skip

OF_SBATCH = {
    "SBATCH_TIMELIMIT": "1", "SBATCH_MEM_PER_NODE": "100M", "SBATCH_MEM_PER_CPU": "100M", "SBATCH_MEM_PER_GPU": "100M",
    "SBATCH_NO_REQUEUE": "1", "SBATCH_REQUEUE": "1", "SBATCH_ARRAY_INX": "0-1", "SBATCH_GRES": "gpu:7",
    "SBATCH_GPUS_PER_TASK": "1", "SBATCH_GPUS_PER_NODE": "5", "SBATCH_GPUS": "3", "SBATCH_CPUS_PER_GPU": "2", "SBATCH_WAIT": "1",
    "SBATCH_CONSTRAINT": "none", "SBATCH_SIGNAL": "B:TERM@5", "SBATCH_JOB_NAME": "other", "SBATCH_OUTPUT": "/dev/null",
    "SBATCH_ERROR": "/dev/null", "SBATCH_EXCLUSIVE": "1", "SBATCH_OPEN_MODE": "truncate", "SBATCH_OVERCOMMIT": "1",
    "SBATCH_NO_KILL": "1", "SBATCH_THREAD_SPEC": "1", "SBATCH_CORE_SPEC": "1", "SBATCH_DELAY_BOOT": "9", "SBATCH_EXPORT": "NONE",
    "SBATCH_HINT": "nomultithread", "SBATCH_DISTRIBUTION": "cyclic", "SBATCH_SPREAD_JOB": "1", "SBATCH_USE_MIN_NODES": "1",
    "SBATCH_COMMENT": "x", "SBATCH_PRIORITY": "7", "SBATCH_DEBUG": "3", "SBATCH_PARTITION": "scavenge", "SLURM_HINT": "nomultithread",
    "SLURM_NNODES": "1", "SLURM_NTASKS": "7", "SLURM_TIMELIMIT": "1", "SLURM_MEM_PER_CPU": "500", "SLURM_CPU_BIND": "none",
    "SLURM_DISTRIBUTION": "cyclic", "SLURM_GPUS_PER_TASK": "1", "SLURM_EXPORT_ENV": "NONE", "SLURM_UMASK": "0777",
    "SLURM_STEP_ID": "0", "SRUN_CPUS_PER_TASK": "7", "SLURM_TRES_PER_TASK": "cpu:1", "SRUN_EXPORT_ENV": "NONE",
    "SLURM_WORKING_CLUSTER": "other:nowhere:6817:9728:109",
}  # fmt: skip
"""https://slurm.schedmd.com/sbatch.html and srun.html, and what a step leaves behind."""


@pytest.fixture
def script(testbed: Testbed, shared_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a batch script on the shared storage, with the testbed's clients of Slurm."""
    monkeypatch.setenv("PATH", testbed.env()["PATH"])
    path = shared_dir / "job.sbatch"
    job = make_job(
        load(composed(*ASKED, "cluster.partition=main")), str(shared_dir), str(shared_dir / "code")
    )
    path.write_text(render(job))
    return path


def shown(testbed: Testbed, script: Path) -> str:
    """Return Slurm's facts of a job of the script, without values that differ between jobs."""
    job = submit_script("slurm", script)
    said = testbed.run(["scontrol", "show", "job", "--details", job]).stdout
    queue.cancel("slurm", [job])
    return re.sub(rf"JobId={job}|slurm-{job}|\b(\S*Time|Priority|LastSchedEval|AllocNode:Sid)=\S+", "", said)


@pytest.mark.slurm
@pytest.mark.needs_root
def test_no_variable_changes_what_slurm_is_asked_for(
    testbed: Testbed, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = shown(testbed, script)
    assert all(asked in plain for asked in ("TimeLimit=10:00:00", "MinMemoryNode=2G", "Requeue=1"))
    for name, value in OF_SBATCH.items():
        with monkeypatch.context() as shell:
            shell.setenv(name, value)
            assert shown(testbed, script) == plain, name


@pytest.mark.slurm
@pytest.mark.needs_root
def test_options_that_users_set_once_for_all_jobs_hold(
    testbed: Testbed, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "scavenge")
    assert "Partition=main" in shown(testbed, script)
    script.write_text(script.read_text().replace("#SBATCH --partition=main\n", ""))
    assert "Partition=scavenge" in shown(testbed, script)


@bounded(300)
@given(
    st.dictionaries(
        st.tuples(
            st.sampled_from(["SLURM_", "SBATCH_", "SRUN_", "SLURMD_"]),
            st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789", min_size=1),
        ).map("".join)
        | st.sampled_from(
            [
                *clean_environment.CLUSTER_VARIABLES,
                "SBATCH_ACCOUNT",
                "SBATCH_PARTITION",
                "SBATCH_QOS",
                "PATH",
                "SLURMISH",
            ]
        ),
        st.text(min_size=1),
    )
)
def test_only_what_names_the_cluster_and_the_user_s_project_reaches_sbatch(environ: dict[str, str]) -> None:
    reaches = clean_environment.submission_environment(SCRIPT, environ)
    left = clean_environment.dropped_variables(SCRIPT, environ)
    assert {*reaches} | {*left} == {*environ} and not {*reaches} & {*left}
    kept = {
        *clean_environment.CLUSTER_VARIABLES,
        "SBATCH_ACCOUNT",
        "SBATCH_QOS",
        "SBATCH_RESERVATION",
        "PATH",
        "SLURMISH",
    }
    if environ.get("SBATCH_PARTITION") == "main":
        kept.add("SBATCH_PARTITION")
    assert {*reaches} == {*environ} & kept
    assert len(clean_environment.notes(SCRIPT, environ)) == bool(left) + bool(environ.get("SLURM_JOB_ID"))


def test_a_script_says_what_the_shell_of_its_submission_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in clean_environment.USER_OPTIONS:
        monkeypatch.setenv(f"SBATCH_{option.upper()}", f"my-{option}")
    script = render(make_job(load(composed("cluster=slurm", "cluster.qos=long")), "/run", "/code"))
    for line in ("account=my-account", "partition=my-partition", "qos=long", "reservation=my-reservation"):
        assert f"#SBATCH --{line}\n" in script
    assert clean_environment.dropped_variables(script, os.environ) == ["SBATCH_QOS"]
    monkeypatch.setenv("SBATCH_ACCOUNT", "a\nrm -rf x")
    assert "rm -rf" not in render(make_job(load(composed("cluster=slurm")), "/run", "/code"))
