"""The script: values that try to break out of it, read by the real bash."""

import dataclasses
import itertools
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.slurm.login import NORMAL
from engine.tests.slurm.scripts import (
    RECORD_START,
    RECORD_STOP,
    SCONTROL,
    make,
    python,
    run_script,
    snapshot,
    tool,
)
from train_anywhere.config.schema import Config
from train_anywhere.distributed.discover import job_port
from train_anywhere.errors import ConfigError
from train_anywhere.files import ROOT
from train_anywhere.job.running_ranks import find_ranks
from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.script import render as renderer
from train_anywhere.slurm.script.job import make_job
from train_anywhere.slurm.script.render import log_path, option, ranges, render

HOSTILE = [
    "a b",
    "it's",
    'say "hi"',
    "a;touch HACKED",
    "$(touch HACKED)",
    "`touch HACKED`",
    "a\ntouch HACKED\n",
    "'; touch HACKED; '",
    '"; touch HACKED; "',
    "back\\slash",
    "$HOME",
    "* ? [a]",
    "a#b",
    "é 日本",
    "-n",
]


@pytest.mark.parametrize(("words", "nodes"), [((), 1), (("program.command=[examples/programs/main.py]",), 2)])
def test_files_of_a_program_are_copied_from_all_nodes(
    make_config: Callable[..., Config], tmp_path: Path, words: tuple[str, ...], nodes: int
) -> None:
    """A failed rank ends those of other nodes. A training's checkpoints are on the first node."""
    ranks = f'case "$*" in *checkpoints.recovery*) echo "$@" >>{tmp_path}/copied; exit ;; esac; exit 9'
    environ = {"SLURM_JOB_NODELIST": "node[1-2]"}
    done = run_script(make_config, tmp_path, ranks, words=("trainer.nodes=2", *words), environ=environ)
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
    subprocess.run(find_ranks(run), timeout=20)
    assert started[0].wait(10) == -signal.SIGUSR1
    assert [process.poll() for process in started[1:]] == [None] * 3
    for process in started[1:]:
        process.kill()


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.quick('"; touch HACKED; "', "'; touch HACKED; '")
def test_hostile_values_reach_the_program_as_they_are(
    make_config: Callable[..., Config], tmp_path: Path, value: str
) -> None:
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
    hostile = make(
        make_config, run=str(run), code=str(code), python=f"/py{value}", modules=[value], local_disk="/tmp/x"
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


def test_a_line_break_in_a_line_of_options_is_refused(make_config: Callable[..., Config]) -> None:
    with pytest.raises(ConfigError, match="line break"):
        render(make(make_config, account="a\ntouch HACKED"))


def test_options_are_quoted_only_where_the_scheduler_would_cut_them() -> None:
    assert option("a100:8") == "a100:8"
    assert option("nvcr.io#nvidia/pytorch") == '"nvcr.io#nvidia/pytorch"'
    assert option('say "hi" \\') == '"say \\"hi\\" \\\\"'


def test_the_log_is_in_the_run_folder_of_each_member(make_config: Callable[..., Config]) -> None:
    made = make(make_config, run="/r/50%/x")
    assert log_path(made) == "/r/50%%/x/slurm-%j"
    assert log_path(dataclasses.replace(made, members=(0, 1))) == "/r/50%%/x-%a/slurm-%A_%a"


def test_an_elastic_job_without_retries_may_go_on_with_fewer_nodes(
    make_config: Callable[..., Config],
) -> None:
    script = render(make(make_config, "trainer.nodes=2-4", "cluster.retries=0"))
    assert " --fewest=2 --no-kill --retries=0 " in script
    assert "--retries" not in render(make(make_config, "trainer.nodes=2", "cluster.retries=0"))


@pytest.mark.parametrize(
    ("nodes", "batch", "counts", "asked"),
    [
        ("8-16", 1024, (8, 16), "--nodes=8-16"),
        ("500-1000", 6400, (800,), "--nodes=800"),
        ("9-16", 1024, (16,), "--nodes=16"),
        ("2-4", 96, (2, 3, 4), "--nodes=2-4"),
    ],
)
def test_an_elastic_job_uses_numbers_of_nodes_that_share_the_batch(
    make_config: Callable[..., Config], nodes: str, batch: int, counts: tuple[int, ...], asked: str
) -> None:
    made = make(make_config, f"trainer.nodes={nodes}", "trainer.devices=8", f"data.batch_size={batch}")
    script = render(made)
    assert made.counts == counts and f"#SBATCH {asked}\n" in script
    assert ("--counts=8,16" in script) == (counts == (8, 16)) and script.count("--counts") == (
        len(counts) == 2
    )
    program = make(
        make_config,
        f"trainer.nodes={nodes}",
        f"data.batch_size={batch}",
        "program.command=[a]",
        "trainer.devices=8",
    )
    assert len(program.counts) == int(nodes.partition("-")[2]) - int(nodes.partition("-")[0]) + 1


def test_memory_per_cpu_is_a_line_of_the_script(make_config: Callable[..., Config]) -> None:
    words = ("cluster.mem_per_cpu=6G", "cluster.cpus_per_task=5", "trainer.devices=2")
    made = make(make_config, *words)
    assert made.mem == 60 * 1024
    script = render(made)
    assert "#SBATCH --mem-per-cpu=6G\n" in script and "#SBATCH --mem=" not in script
    pbs = make_job(make_config("cluster=pbs", *words), "/run", "/run/code")
    assert f":mem={60 * 1024}mb" in render(pbs)


def test_ranges() -> None:
    assert ranges([0, 1, 2, 3, 7]) == "0-3,7"
    assert ranges([]) == ""


@pytest.mark.parametrize(("trainer", "expected"), [(0, 0), (1, 1), (137, 137), (3, 3)])
@pytest.mark.quick("0-0")
def test_the_exit_code_of_the_trainer_is_that_of_the_job(
    make_config: Callable[..., Config], tmp_path: Path, trainer: int, expected: int
) -> None:
    assert run_script(make_config, tmp_path, f"exit {trainer}").returncode == expected


def test_a_stop_told_by_rank_0_is_75_whatever_the_launcher_says(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    assert run_script(make_config, tmp_path, f"{python(RECORD_STOP)}; exit 143").returncode == 75


@pytest.mark.slow
def test_a_killed_rank_0_leaves_a_failedrun_script(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    once = f'[ -e "$0.ran" ] && exit 1; touch "$0.ran"; {python(RECORD_START)}; exit 137'
    assert run_script(make_config, tmp_path, once).returncode == 137
    run = RunDir(tmp_path)
    info = run.read_info()
    assert (info["state"], info["attempts"][-1]["ended_by"]) == ("failed", "failed")
    assert info["attempts"][-1]["reason"] == "a rank was killed by signal SIGKILL, often the memory limit"


@pytest.mark.slow
def test_a_job_that_is_refused_says_nothing_of_the_one_that_trains(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    other = f'[ -e "$0.ran" ] && exit 1; touch "$0.ran"; SLURM_JOB_ID=8 {python(RECORD_START)}; exit 2'
    assert run_script(make_config, tmp_path, other).returncode == 2
    assert RunDir(tmp_path).read_info()["state"] == "running"


@pytest.mark.slow
def test_a_python_that_does_not_start_leaves_the_run_queued(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    assert run_script(make_config, tmp_path, "exit 127", state="preempted").returncode == 127
    assert RunDir(tmp_path).read_info()["state"] == "queued"


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("value", ["production", "BATCH"])
@pytest.mark.quick("production-1", "BATCH-0")
def test_a_variable_of_the_profile_does_not_decide_about_the_requeue(
    make_config: Callable[..., Config], tmp_path: Path, value: str, batch: int
) -> None:
    """The scheduler distinguishes batch jobs, which come back, from allocations, which can't."""
    scontrol = SCONTROL.format(batch=batch, folder=tmp_path)
    stop = f"{python(RECORD_STOP)}; exit 75"
    done = run_script(make_config, tmp_path, stop, environ={"ENVIRONMENT": value}, scontrol=scontrol)
    assert done.returncode == 75, done.stderr
    assert ("back to the queue" in done.stdout) == (tmp_path / "requeued").exists() == bool(batch)


@pytest.mark.parametrize(
    "line",
    [
        "export ENVIRONMENT=production",
        "export RUN=/nowhere CODE=/nowhere",
        "code=$HOME state=completed hung=1",
    ],
)
def test_variables_of_the_setup_are_not_those_of_the_script(
    make_config: Callable[..., Config], tmp_path: Path, line: str
) -> None:
    scontrol = SCONTROL.format(batch=1, folder=tmp_path)
    stop = f"{python(RECORD_STOP)}; exit 75"
    done = run_script(make_config, tmp_path, stop, scontrol=scontrol, setup=[line])
    assert done.returncode == 75 and (tmp_path / "requeued").read_text() == "requeue 7\n", done.stderr


@pytest.mark.parametrize("allocation", ["", "7"])
def test_the_gpus_of_an_allocation_are_kept(
    make_config: Callable[..., Config], tmp_path: Path, allocation: str
) -> None:
    """Locales of the submitting shell are not counted."""
    environ = {"SLURM_GPUS": "3", "ENVIRONMENT": "production", "TRAIN_ALLOCATION": allocation}
    done = run_script(make_config, tmp_path, 'echo "gpus=${SLURM_GPUS:-none}"', environ=environ)
    assert f"gpus={'3' if allocation else 'none'}" in done.stdout, done.stderr


def test_a_cancelled_job_cancels_only_the_next_jobs_of_its_own_script(
    make_config: Callable[..., Config], tmp_path: Path
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
    done = run_script(make_config, tmp_path, ranks, words=("cluster.chain=2",))
    assert done.returncode == 75, done.stderr
    assert (tmp_path / "cancelled").read_text() == "--state=PENDING 8\n"


@pytest.mark.parametrize(("cluster", "may_requeue"), [("slurm", True), ("pbs", False)])
def test_only_slurm_requeues_a_job_without_a_bad_node(
    make_config: Callable[..., Config], cluster: str, may_requeue: bool
) -> None:
    made = make_job(make_config(f"cluster={cluster}", "cluster.retries=1"), "/run", "/run/code")
    assert ("/python --requeue" in render(made)) == may_requeue


@pytest.mark.slow
def test_an_older_stop_is_not_taken_for_one_of_this_start(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    assert run_script(make_config, tmp_path, "exit 1", state="preempted").returncode == 1


def test_a_complete_run_is_left_alone(make_config: Callable[..., Config], tmp_path: Path) -> None:
    done = run_script(make_config, tmp_path, "exit 9", state="completed")
    assert (done.returncode, done.stdout) == (0, "This run is complete: nothing to do.\n")


def test_a_signal_is_passed_on_and_waited_for(make_config: Callable[..., Config], tmp_path: Path) -> None:
    ranks = 'trap "sleep 0.3; exit 75" USR1; kill -USR1 $(ps -o ppid= $PPID); for i in $(seq 100); do sleep 0.1; done; exit 9'
    done = run_script(make_config, tmp_path, ranks)
    assert done.returncode == 75
    assert "Asked to stop (USR1)" in done.stdout


@pytest.mark.parametrize(
    "side", ["exit 9", "kill -9 $$", "exec </dev/null >/dev/null; trap '' TERM; sleep 40", "echo lost >&2"]
)
def test_whatever_the_side_process_does_the_job_ends_as_its_ranks(
    make_config: Callable[..., Config], tmp_path: Path, side: str
) -> None:
    """It fails, is killed, hangs or complains. Exit code and log are those of the ranks."""
    done = run_script(make_config, tmp_path, "echo trained", side=side)
    assert (done.returncode, done.stdout.replace("\n", ""), done.stderr) == (0, "trained", "")


@pytest.mark.parametrize("real", ["", "slurmstepd: error: Detected 1 oom_kill event", "No module named x"])
def test_errors_of_the_monitor_are_kept_without_lines_of_a_normal_end(
    make_config: Callable[..., Config], tmp_path: Path, real: str
) -> None:
    lines = f"{NORMAL}\n{real}\n{NORMAL}" if real else NORMAL
    side = f"printf %s {shlex.quote(lines)} >&2; touch {tmp_path}/side"
    wait = f"until [ -e {tmp_path}/side ]; do sleep 0.1; done; sleep 0.5"
    done = run_script(make_config, tmp_path, wait, side=side)
    errors = (tmp_path / "monitor" / "errors.txt").read_text()
    assert (done.returncode, done.stderr, errors.strip()) == (0, "", lines if real else "")


def test_a_module_that_can_not_be_loaded_ends_the_job(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    done = run_script(make_config, tmp_path, "exit 0", modules=["nothere"])
    assert done.returncode == 127  # there is no `module` here


def test_an_environment_script_may_read_unset_variables(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "activate").write_text('ACTIVATED="$NOT_SET yes"; export ACTIVATED\n')
    done = run_script(make_config, tmp_path, 'echo "activated: $ACTIVATED"', venv=str(tmp_path / "venv"))
    assert "activated:  yes" in done.stdout


def test_each_start_of_a_job_meets_at_another_port(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    """train_anywhere.distributed computes it. A free port that the user exported is used first."""
    ranks = "echo port=$MASTER_PORT; exit 0"

    def port(**environ: str) -> str:
        done = run_script(make_config, tmp_path, ranks, environ=environ)
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
    make_config: Callable[..., Config], tmp_path: Path, launch: str
) -> None:
    """Each srun exports all variables. Steps next to the ranks have none that limits them."""
    left = {"SLURM_CPUS_PER_TASK": "1", "SRUN_CPUS_PER_TASK": "1", "SLURM_TRES_PER_TASK": "cpu:1"}
    environ = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_GPUS_ON_NODE": "2", **left}
    setup = "cluster.setup=['export SLURM_CPUS_PER_TASK=1 SRUN_CPUS_PER_TASK=1 SLURM_TRES_PER_TASK=cpu:1']"
    tool(tmp_path / "mpirun", "exit 9")
    record = f'echo "$* $(env | tr "\\n" " ")" >>{tmp_path}/calls; case "$*" in *SLURM_PROCID*) echo "0 node1"; exit ;; esac'
    for nodes in ("trainer.total_devices=3", "trainer.devices=2"):
        words = ("trainer.nodes=2", nodes, f"launch={launch}", setup, "data=imagefolder", "data.stage=true")
        done = run_script(
            make_config,
            tmp_path,
            f"{record}; exit 9",
            words=words,
            environ=environ,
            side=f"{record}; exec cat",
        )
        assert done.returncode == 9, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) >= 6 and all("--export=ALL" in call for call in calls), calls
    whole = [call for call in calls if "--whole" in call]
    assert len(whole) >= 4 and not [call for call in whole if any(f" {name}=" in call for name in left)]
    ssh = (ROOT / "engine" / "train_anywhere" / "slurm" / "ssh_by_srun" / "ssh").read_text()
    assert all(name in ssh.partition("--whole")[0] for name in left)


def test_the_layout_on_sockets_is_kept(make_config: Callable[..., Config]) -> None:
    for extra, expected in (
        ("--distribution=cyclic", "block"),
        ("--distribution=block:block", "block:block"),
        ("-m cyclic:fcyclic", "block:fcyclic"),
        ("--mem-bind=local", "block"),
    ):
        assert f" --distribution={expected} " in render(make(make_config, extra=[extra]))


def test_compiled_templates_are_kept_until_a_template_is_edited(
    make_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, templates = make(make_config), tmp_path / "templates"
    shutil.copytree(renderer.TEMPLATES, templates, ignore=shutil.ignore_patterns("__pycache__"))
    expected = render(made)
    monkeypatch.setattr(renderer, "TEMPLATES", templates)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert [render(made), render(made)] == [expected, expected]
    assert len(list((templates / "__pycache__").iterdir())) == 3
    (templates / "ranks.sh.j2").write_text("# edited\n")
    assert "# edited" in render(made)


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's outline, to be edited."""
    folder = tmp_path / "templates"
    shutil.copytree(renderer.TEMPLATES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(renderer, "TEMPLATES", folder)
    return folder


def test_the_example_of_the_page(make_config: Callable[..., Config], templates: Path) -> None:
    """docs/how-to/batch-script.md: a line for all jobs, and a wrapper of the ranks' command."""
    page = (ROOT / "docs/how-to/batch-script.md").read_text()
    (line,) = re.findall(r"```jinja title=\"slurm/templates/environment.sh.j2\"\n(.*?\n)```", page, re.S)
    (command,) = re.findall(r"```bash\n(sed -i .*)\n```", page)
    with (templates / "environment.sh.j2").open("a") as file:
        file.write(line)
    (templates.parent / "slurm").mkdir()
    (templates.parent / "slurm" / "templates").symlink_to(templates)
    subprocess.run(command, shell=True, check=True, cwd=templates.parent)
    script = render(make(make_config))
    assert line in script and re.search(r"-- \\\n +nice srun ", script)
    assert f"`{'`, `'.join(renderer.INCLUDES)}`" in page


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("{# outline 3", "{# outline 2", "is an outline version 2, but this engine needs version 3"),
        ("{# outline 3", "{#", "is an outline without a version"),
        ('{% include "ranks.sh.j2" %}', "", 'lacks {% include "ranks.sh.j2" %}'),
        ('"ranks.sh.j2"', '"ranks.sh.j2" %}{% include "site.sh.j2"', "site.sh.j2 is included by"),
        ("set -euo pipefail", "{% if %}", "slurm.sh.j2: Expected an expression"),
        ("set -euo pipefail", "{{ job.partition }}", "has no attribute 'partition'"),
    ],
)
def test_an_outline_that_does_not_fit(
    make_config: Callable[..., Config], templates: Path, old: str, new: str, says: str
) -> None:
    outline = templates / "slurm.sh.j2"
    assert old in outline.read_text()
    outline.write_text(outline.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=re.escape(says)):
        render(make(make_config))


def test_an_outline_that_is_missing(make_config: Callable[..., Config], templates: Path) -> None:
    (templates / "slurm.sh.j2").unlink()
    with pytest.raises(ConfigError, match="can't be read"):
        render(make(make_config))


def test_templates_that_can_not_be_kept(
    make_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, templates = make(make_config), tmp_path / "templates"
    shutil.copytree(renderer.TEMPLATES, templates, ignore=shutil.ignore_patterns("__pycache__"))
    (templates / "__pycache__").touch()  # no folder, so also root can't write in it
    expected = render(made)
    monkeypatch.setattr(renderer, "TEMPLATES", templates)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert render(made) == expected


@pytest.mark.parametrize("cluster", ["pbs", "slurm"])
def test_mpirun_passes_what_the_setup_exports(
    make_config: Callable[..., Config], tmp_path: Path, cluster: str
) -> None:
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
    script.write_text(render(make(make_config, *words, run=str(tmp_path), code=str(tmp_path))))
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
        (
            ("program.command=[examples/programs/main.py]",),
            ("checkpoints/newest",),
            "Stopped: back to the queue.",
        ),
    ],
    ids=["saved", "nothing saved", "killed as hung", "program"],
)
def test_a_checkpoint_is_named_only_if_one_was_saved(
    make_config: Callable[..., Config],
    tmp_path: Path,
    words: tuple[str, ...],
    there: tuple[str, ...],
    back: str,
) -> None:
    for name in there:
        (tmp_path / name).parent.mkdir()
    marks = "".join(f"; echo 7/$TRAIN_STARTED >{tmp_path / name}" for name in there)
    running = f"printf '#!/bin/sh\\necho JobState=RUNNING BatchFlag=1\\n' >{tmp_path}/scontrol"
    ranks = (
        f'case "$*" in *checkpoints.recovery*) exit ;; esac; {running}{marks}; {python(RECORD_STOP)}; exit 75'
    )
    done = run_script(
        make_config, tmp_path, ranks, words=words, environ={"ENVIRONMENT": "BATCH", "SLURM_JOB_ID": "7"}
    )
    assert done.returncode == 75 and back in done.stdout.splitlines(), done.stdout + done.stderr
    assert done.stdout.count("checkpoint saved") == back.count("checkpoint saved")
