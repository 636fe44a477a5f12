"""Batch scripts in the real bash: values that try to break out of them, ends of ranks, signals, environments."""

import itertools
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from engine.tests.slurm.login import NORMAL
from engine.tests.slurm.scripts import RECORD_START, RECORD_STOP, SCONTROL, Scripts, python, snapshot, tool
from train_anywhere.distributed.discover import job_port
from train_anywhere.files import ROOT
from train_anywhere.job.running_ranks import find_ranks
from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.script.render import render

HOSTILE = [
    "a b", "it's", 'say "hi"', "a;touch HACKED", "$(touch HACKED)", "`touch HACKED`", "a\ntouch HACKED\n", "'; touch HACKED; '",
    '"; touch HACKED; "', "back\\slash", "$HOME", "* ? [a]", "a#b", "é 日本", "-n",
]  # fmt: skip


@pytest.mark.parametrize(("words", "nodes"), [((), 1), (("program.command=[examples/programs/main.py]",), 2)])
def test_files_of_a_program_are_copied_from_all_nodes(
    scripts: Scripts, tmp_path: Path, words: tuple[str, ...], nodes: int
) -> None:
    """A failed rank ends those of other nodes. A training's checkpoints are on the first node."""
    ranks = f'case "$*" in *checkpoints.recovery*) echo "$@" >>{tmp_path}/copied; exit ;; esac; exit 9'
    environ = {"SLURM_JOB_NODELIST": "node[1-2]"}
    done = scripts.run(ranks, words=("trainer.nodes=2", *words), environ=environ)
    assert done.returncode == 9, done.stderr
    found = re.findall(r"--nodelist=(\S+)", (tmp_path / "copied").read_text())
    assert found == ["node1", "node2"][:nodes]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.quick("a b", "* ? [a]")
def test_the_ranks_of_a_launcher_are_found_and_nothing_else(tmp_path: Path, value: str) -> None:
    """torchrun and horovodrun pass no signal on. Folders and the interpreter have odd names."""
    run = f"{tmp_path}/run{value}"
    python, train = tmp_path / f"env-1{value}" / "python", tmp_path / f"code{value}" / "train.py"
    for path in (python, train):
        path.parent.mkdir()
    python.symlink_to(os.path.realpath(sys.executable))
    train.write_text("print('ready', flush=True); import time; time.sleep(60)")
    (tmp_path / "launcher.py").write_text(train.read_text())
    rank = [python, "-u", train, "--run"]
    others = [
        [*rank, f"{run}1"],
        [python, "-m", "launcher", "--", train, "--run", run],
        [python, "launcher.py", "-np", "2", *rank, run],
    ]
    started = [
        subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE) for words in ([*rank, run], *others)
    ]
    assert [process.stdout.readline() for process in started if process.stdout] == [b"ready\n"] * 4
    subprocess.run(find_ranks(run), timeout=60)
    assert started[0].wait(60) == -signal.SIGUSR1
    assert [process.poll() for process in started[1:]] == [None] * 3
    for process in started[1:]:
        process.kill()


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.quick('"; touch HACKED; "', "'; touch HACKED; '")
def test_hostile_values_reach_the_program_as_they_are(scripts: Scripts, tmp_path: Path, value: str) -> None:
    """Folders, interpreter, modules, environments and the local disk are hostile at once."""
    run, code, tools = (
        tmp_path / f"run{value}".replace("\n", " "),
        tmp_path / f"code{value}",
        tmp_path / "tools",
    )
    for folder in (run, code, tools):
        folder.mkdir()
    snapshot(code)
    RunDir(run).update(state="queued")
    seen = tmp_path / "seen"
    side = f'case "$*" in *train_anywhere.features.node*) printf "%s\\0" "$@" >{shlex.quote(str(seen))}.side; exit ;; esac'
    tool(tools / "srun", f'{side}; shift 6; printf "%s\\0" "$@" >{shlex.quote(str(seen))}')
    tool(tools / "scontrol", "echo node1")
    (tmp_path / "profile").write_text(
        f'module() {{ printf "%s\\0" "$@" >>{shlex.quote(str(seen))}.modules; }}\n'
    )
    hostile = scripts.make(
        run=str(run), code=str(code), python=f"/py{value}", modules=[value], local_disk="/tmp/x"
    )
    script = tmp_path / "job.sh"
    script.write_text(render(hostile))
    environ = {
        "PATH": f"{tools}:/usr/bin:/bin",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node1",
        "BASH_ENV": str(tmp_path / "profile"),
        "HOME": str(tmp_path),
    }
    done = subprocess.run(["bash", str(script)], env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    words = seen.read_text().split("\0")[:-1]
    assert words[-5:] == [f"/py{value}", "-u", f"{code}/src/train.py", "--run", str(run)]
    words = Path(f"{seen}.side").read_text().split("\0")[:-1]
    assert words[-4:] == [f"/py{value}", "-m", "train_anywhere.features.node", str(run)]
    assert value in Path(f"{seen}.modules").read_text().split("\0")
    assert not list(tmp_path.rglob("HACKED"))


ONCE = '[ -e "$0.ran" ] && exit 1; touch "$0.ran"; '


ENDS = {
    "complete": ("exit 0", "queued", 0, None), "failed": ("exit 1", "queued", 1, None), "of a script": ("exit 3", "queued", 3, None),
    "an older stop": ("exit 1", "preempted", 1, None), "no Python": ("exit 127", "preempted", 127, "queued"),
    "a stop told by rank 0": (f"{python(RECORD_STOP)}; exit 143", "queued", 75, "preempted"),
    "killed": (f"{ONCE}{python(RECORD_START)}; exit 137", "queued", 137, "failed"),
    "another job trains": (f"{ONCE}SLURM_JOB_ID=8 {python(RECORD_START)}; exit 2", "queued", 2, "running"),
}  # fmt: skip
"""What the ranks do, the state before, the exit code of the job, and the state that it leaves."""


@pytest.mark.parametrize("case", ENDS)
@pytest.mark.quick("complete", "a stop told by rank 0")
def test_the_exit_code_of_the_job_and_the_state_that_it_leaves(scripts: Scripts, case: str) -> None:
    ranks, before, code, after = ENDS[case]
    assert scripts.run(ranks, state=before).returncode == code
    info = RunDir(scripts.folder).read_info()
    assert after is None or info["state"] == after
    if case == "killed":
        last = info["attempts"][-1]
        assert last["ended_by"] == "failed" and "killed by signal SIGKILL, often the memory" in last["reason"]
        assert last["script_ended"] >= last["allocated"]


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("value", ["production", "BATCH"])
@pytest.mark.quick("production-1", "BATCH-0")
def test_a_variable_of_the_profile_does_not_decide_about_the_requeue(
    scripts: Scripts, tmp_path: Path, value: str, batch: int
) -> None:
    """The scheduler distinguishes batch jobs, which come back, from allocations, which can't."""
    scontrol = SCONTROL.format(batch=batch, folder=tmp_path)
    stop = f"{python(RECORD_STOP)}; exit 75"
    done = scripts.run(stop, environ={"ENVIRONMENT": value}, scontrol=scontrol)
    assert done.returncode == 75, done.stderr
    assert ("back to the queue" in done.stdout) == (tmp_path / "requeued").exists() == bool(batch)


@pytest.mark.parametrize(
    "line",
    [
        "export ENVIRONMENT=production", "export RUN=/nowhere CODE=/nowhere", "code=$HOME state=completed hung=1",
    ],
)  # fmt: skip
def test_variables_of_the_setup_are_not_those_of_the_script(
    scripts: Scripts, tmp_path: Path, line: str
) -> None:
    scontrol = SCONTROL.format(batch=1, folder=tmp_path)
    stop = f"{python(RECORD_STOP)}; exit 75"
    done = scripts.run(stop, scontrol=scontrol, setup=[line])
    assert done.returncode == 75 and (tmp_path / "requeued").read_text() == "requeue 7\n", done.stderr


@pytest.mark.parametrize("allocation", ["", "7"])
def test_the_gpus_of_an_allocation_are_kept(scripts: Scripts, allocation: str) -> None:
    """Locales of the submitting shell are not counted."""
    environ = {"SLURM_GPUS": "3", "ENVIRONMENT": "production", "TRAIN_ALLOCATION": allocation}
    done = scripts.run('echo "gpus=${SLURM_GPUS:-none}"', environ=environ)
    assert f"gpus={'3' if allocation else 'none'}" in done.stdout, done.stderr


def test_a_cancelled_job_cancels_only_the_next_jobs_of_its_own_script(
    scripts: Scripts, tmp_path: Path
) -> None:
    """jobs.txt has no effect: a copied folder lists another run's jobs, and users may edit it."""
    (tmp_path / "jobs.txt").write_text("7\n8\n777\n--me\n--user=root\n")
    (copy := tmp_path / "copy").mkdir()
    (copy / "job.sbatch").touch()
    own = f"{tmp_path}/job.sbatch"
    listed = [f"7|RUNNING|{own}", f"8|PENDING|{own}", f"777|PENDING|{copy}/job.sbatch", "5555|PENDING|/x"]
    tool(tmp_path / "squeue", "printf '%s\\n' " + shlex.join(listed))
    tool(tmp_path / "scancel", f'echo "$@" >>{tmp_path}/cancelled')
    ranks = f"echo 'slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT now ***' >&2; {python(RECORD_STOP)}; exit 75"
    done = scripts.run(ranks, words=("cluster.chain=2",))
    assert done.returncode == 75, done.stderr
    assert (tmp_path / "cancelled").read_text() == "--state=PENDING 8\n"


def test_a_complete_run_is_left_alone(scripts: Scripts) -> None:
    done = scripts.run("exit 9", state="completed")
    assert (done.returncode, done.stdout) == (0, "This run is complete: nothing to do.\n")


def test_a_signal_is_passed_on_and_waited_for(scripts: Scripts) -> None:
    ranks = 'trap "sleep 0.3; exit 75" USR1; kill -USR1 $(ps -o ppid= $PPID); for i in $(seq 100); do sleep 0.1; done; exit 9'
    done = scripts.run(ranks)
    assert done.returncode == 75
    assert "Asked to stop (USR1)" in done.stdout


@pytest.mark.parametrize(
    "side", ["exit 9", "kill -9 $$", "exec </dev/null >/dev/null; trap '' TERM; sleep 40", "echo lost >&2"]
)
def test_whatever_the_side_process_does_the_job_ends_as_its_ranks(scripts: Scripts, side: str) -> None:
    """It fails, is killed, hangs or complains. Exit code and log are those of the ranks."""
    done = scripts.run("echo trained", side=side)
    assert (done.returncode, done.stdout.replace("\n", ""), done.stderr) == (0, "trained", "")


@pytest.mark.parametrize("real", ["", "slurmstepd: error: Detected 1 oom_kill event", "No module named x"])
def test_errors_of_the_monitor_are_kept_without_lines_of_a_normal_end(
    scripts: Scripts, tmp_path: Path, real: str
) -> None:
    lines = f"{NORMAL}\n{real}\n{NORMAL}" if real else NORMAL
    side = f"printf %s {shlex.quote(lines)} >&2; touch {tmp_path}/side"
    wait = f"until [ -e {tmp_path}/side ]; do sleep 0.1; done; sleep 0.5"
    done = scripts.run(wait, side=side)
    errors = (tmp_path / "monitor" / "errors.txt").read_text()
    assert (done.returncode, done.stderr, errors.strip()) == (0, "", lines if real else "")


def test_a_module_that_can_not_be_loaded_ends_the_job(scripts: Scripts) -> None:
    done = scripts.run("exit 0", modules=["nothere"])
    assert done.returncode == 127  # there is no `module` here


def test_an_environment_script_may_read_unset_variables(scripts: Scripts, tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "activate").write_text('ACTIVATED="$NOT_SET yes"; export ACTIVATED\n')
    done = scripts.run('echo "activated: $ACTIVATED"', venv=str(tmp_path / "venv"))
    assert "activated:  yes" in done.stdout


def test_each_start_of_a_job_meets_at_another_port(scripts: Scripts) -> None:
    """train_anywhere.distributed computes it. A free port that the user exported is used first."""
    ranks = "echo port=$MASTER_PORT; exit 0"

    def port(**environ: str) -> str:
        done = scripts.run(ranks, environ=environ)
        return done.stdout.rpartition("port=")[2].strip()

    assert port() == str(job_port(7))
    assert port(SLURM_RESTART_COUNT="2") == str(job_port(7, restart=2))
    assert port(MASTER_PORT="29511", SLURM_RESTART_COUNT="1") == str(job_port(7, restart=1))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for unusable in (str(taken.getsockname()[1]), "abc", "080", "70000"):
            assert port(MASTER_PORT=unusable) == str(job_port(7))
        taken.close()
        assert port(MASTER_PORT="29511") == "29511"


@pytest.mark.parametrize("launch", ["srun", "torchrun", "mpirun"])
@pytest.mark.quick("srun")
def test_each_step_of_a_job_has_the_environment_and_whole_nodes(
    scripts: Scripts, tmp_path: Path, launch: str
) -> None:
    """Each srun exports all variables. Steps next to the ranks have none that limits them."""
    left = {"SLURM_CPUS_PER_TASK": "1", "SRUN_CPUS_PER_TASK": "1", "SLURM_TRES_PER_TASK": "cpu:1"}
    environ = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_GPUS_ON_NODE": "2", **left}
    setup = "cluster.setup=['export SLURM_CPUS_PER_TASK=1 SRUN_CPUS_PER_TASK=1 SLURM_TRES_PER_TASK=cpu:1']"
    tool(tmp_path / "mpirun", "exit 9")
    record = f'echo "$* $(env | tr "\\n" " ")" >>{tmp_path}/calls; case "$*" in'
    record += ' *SLURM_PROCID*) echo "0 node1"; exit ;; *checkpoints.recovery*) exit ;; esac'
    for nodes in ("trainer.total_devices=3", "trainer.devices=2"):
        words = ("trainer.nodes=2", nodes, f"launch={launch}", setup, "data=imagefolder", "data.stage=true")
        done = scripts.run(f"{record}; exit 9", words=words, environ=environ, side=f"{record}; exec cat")
        assert done.returncode == 9, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) >= 6 and all("--export=ALL" in call for call in calls), calls
    whole = [call for call in calls if "--whole" in call]
    assert len(whole) >= 4 and not [call for call in whole if any(f" {name}=" in call for name in left)]
    ssh = (ROOT / "engine" / "train_anywhere" / "slurm" / "ssh_by_srun" / "ssh").read_text()
    assert all(name in ssh.partition("--whole")[0] for name in left)


@pytest.mark.parametrize("cluster", ["pbs", "slurm"])
def test_mpirun_passes_what_the_setup_exports(scripts: Scripts, tmp_path: Path, cluster: str) -> None:
    """A daemon of ssh has none of the variables: each name is an option once."""
    setup = '["export NCCL_SOCKET_IFNAME=ib0 HF_HOME=\'/a b\'","export KEPT","source $HOME/own.sh","other=1"]'
    words = [f"cluster={cluster}", "launch=mpirun", "trainer.nodes=2", f"cluster.setup={setup}"]
    (tmp_path / "own.sh").write_text("export FROM_FILE=$'a\\nb' PATH=$PATH:/own\n")
    (tmp_path / "nodes").write_text("node1\nnode2\n")
    for name in ("srun", "scontrol"):
        tool(tmp_path / name, "cat >/dev/null; echo node1; echo node2")
    tool(tmp_path / "mpirun", f'printf "%s\\n" "$@" >{tmp_path}/words; env >{tmp_path}/environment')
    RunDir(tmp_path).update(state="queued")
    snapshot(tmp_path)
    script = tmp_path / "job.sh"
    script.write_text(scripts.render(*words, run=str(tmp_path), code=str(tmp_path)))
    own = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), "KEPT": "old", "LEFT": "old"}
    jobs = {"PBS_JOBID": "7.server", "PBS_NODEFILE": str(tmp_path / "nodes")}
    jobs = jobs if cluster == "pbs" else {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]"}
    done = subprocess.run(
        ["bash", str(script)], env={**own, **jobs}, capture_output=True, text=True, timeout=60
    )
    words = (tmp_path / "words").read_text().splitlines()
    passed = [word for before, word in itertools.pairwise(words) if before == "-x"]
    assert {"NCCL_SOCKET_IFNAME", "HF_HOME", "KEPT", "FROM_FILE", "PYTHONPATH", "TRAIN_HOSTS"} <= {*passed}, (
        done.stderr
    )
    assert len(passed) == len({*passed}), passed
    assert not {"LEFT", "HOME", "PWD", "other", "_", *jobs} & {*passed}, passed
    assert "HF_HOME=/a b" in (tmp_path / "environment").read_text()


@pytest.mark.parametrize(
    ("words", "there", "back"),
    [
        ((), ("checkpoints/newest",), "Stopped with a checkpoint saved: back to the queue."),
        ((), (), "Stopped without a new checkpoint: back to the queue."),
        ((), ("checkpoints/newest", "monitor/hang"), "Stopped without a new checkpoint: back to the queue."),
        (("program.command=[examples/programs/main.py]",), ("checkpoints/newest",), "Stopped: back to the queue."),
    ],
    ids=["saved", "nothing saved", "killed as hung", "program"],
)  # fmt: skip
def test_a_checkpoint_is_named_only_if_one_was_saved(
    scripts: Scripts, tmp_path: Path, words: tuple[str, ...], there: tuple[str, ...], back: str
) -> None:
    for name in there:
        (tmp_path / name).parent.mkdir()
    marks = "".join(f"; echo 7/$TRAIN_STARTED >{tmp_path / name}" for name in there)
    running = f"printf '#!/bin/sh\\necho JobState=RUNNING BatchFlag=1\\n' >{tmp_path}/scontrol"
    ranks = (
        f'case "$*" in *checkpoints.recovery*) exit ;; esac; {running}{marks}; {python(RECORD_STOP)}; exit 75'
    )
    done = scripts.run(ranks, words=words, environ={"ENVIRONMENT": "BATCH", "SLURM_JOB_ID": "7"})
    assert done.returncode == 75 and back in done.stdout.splitlines(), done.stdout + done.stderr
    assert done.stdout.count("checkpoint saved") == back.count("checkpoint saved")
