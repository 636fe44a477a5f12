"""`python src/run.py` on this machine and as a dry run: accepted and refused arguments."""

import errno
import json
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.tests.program.conftest import Latest, Run
from tools.testing.weights import info
from train_anywhere.config.schema import Config
from train_anywhere.distributed.topology import Topology
from train_anywhere.files import ENGINE, ROOT
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.program.run_program import _finish
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.recorder import RunRecorder

HEAVY = {"torch", "tensorflow", "lightning", "keras", "numpy"}
MakeRun = Callable[..., tuple[Config, RunDir]]


def seen(folder: Path, rank: int = 0) -> tuple[list[str], dict[str, str]]:
    facts = json.loads((folder / f"shown-{rank}.json").read_text())
    return facts["arguments"], facts["environ"]


WORDS = [
    "a b", "c=$d", "--x=1", "${oc.env:HOME}", "", "it's", "new\nline", "é", "# x", "1", "null", "~", "--", "-m",
]  # fmt: skip


def test_arguments_arrive_as_they_are(run: Run, script: str, latest: Latest) -> None:
    done = run("--", script, *WORDS)
    assert done.returncode == 0, done.stderr
    folder = latest()
    words, environ = seen(folder)
    assert words == WORDS
    assert folder.parent.name == Path(script).stem
    assert info(folder)["state"] == "completed"
    assert environ["TRAIN_PERSISTENT_CHECKPOINTS"] == str(folder / "checkpoints")
    assert environ["PYTHONPATH"].split(":")[:2] == [*dict.fromkeys((str(ROOT), str(ENGINE)))]
    # resumed by only the run folder, with the same arguments
    (folder / "run.json").write_text(json.dumps({**info(folder), "state": "failed"}))
    (folder / "shown-0.json").unlink()
    done = run(f"resume={folder}")
    assert done.returncode == 0, done.stderr
    assert seen(folder)[0] == WORDS
    done = run(f"resume={folder}")
    assert done.returncode == 0 and "is complete. To start a new run: " in done.stdout
    assert "src/run.py -- " in done.stdout and "train longer" not in done.stdout


def test_a_resumed_program_gets_a_new_value(run: Run, script: str, latest: Latest) -> None:
    assert run("args.lr=1", "--", script, "{args.lr}").returncode == 0
    folder = latest()
    (folder / "run.json").write_text(json.dumps({**info(folder), "state": "failed"}))
    (folder / "shown-0.json").unlink()
    done = run(f"resume={folder}", "args.lr=2")
    assert done.returncode == 0, done.stderr
    assert seen(folder)[0] == ["2"]


def test_two_ranks_know_each_other(run: Run, script: str, latest: Latest) -> None:
    environ = {**os.environ, "KERAS_BACKEND": "torch"}
    done = run("trainer.devices=2", "trainer.accelerator=cpu", "--", script, env=environ)
    assert done.returncode == 0, done.stderr
    folder = latest()
    both = [seen(folder, rank)[1] for rank in (0, 1)]
    assert [e["RANK"] + e["LOCAL_RANK"] + e["WORLD_SIZE"] for e in both] == ["002", "112"]
    assert both[0]["MASTER_PORT"] == both[1]["MASTER_PORT"]
    assert [e["KERAS_BACKEND"] for e in both] == ["torch"] * 2 and "TRAIN_PARENT" not in both[0]
    assert both[0]["TRAIN_METRICS"] != os.devnull == both[1]["TRAIN_METRICS"]
    tasks = [json.loads(e["TF_CONFIG"]) for e in both]
    assert [t["task"]["index"] for t in tasks] == [0, 1] and len(set(tasks[0]["cluster"]["worker"])) == 2
    assert "[rank 1] from rank 1" in done.stdout and "\nfrom rank 0" in done.stdout
    assert info(folder)["state"] == "completed"


def test_one_process_with_all_devices(run: Run, script: str, latest: Latest) -> None:
    for words, ranks in (
        (("trainer.devices=2", "program.processes=node"), None),
        (("program.processes=rank",), ("0", "1")),
    ):
        assert run("trainer.accelerator=cpu", *words, "--", script).returncode == 0
        environ = seen(latest())[1]
        assert (environ.get("RANK"), environ.get("WORLD_SIZE")) == (ranks or (None, None))


def test_a_rank_that_fails_fails_the_run(run: Run, script: str, latest: Latest) -> None:
    """Its exit code is the reason."""
    done = run("trainer.devices=2", "trainer.accelerator=cpu", "--", script, "--fails")
    assert done.returncode == 7
    reason = f"rank 1: {script} ended with exit code 7"
    assert f"{reason}." in done.stderr and "Traceback" not in done.stderr
    assert (info(latest())["state"], info(latest())["attempts"][0]["reason"]) == ("failed", reason)


def test_the_dry_run_shows_the_job_and_imports_no_framework(run: Run, script: str) -> None:
    environ = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    words = ("cluster=slurm", "trainer.nodes=3", "launch=torchrun", "dry_run=true", "--", script, "a b")
    done = run(*words, env=environ)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "#SBATCH --nodes=3" in done.stdout and "torch.distributed.run" in done.stdout
    shown = done.stdout.partition("\ncluster  ")[2]
    assert f"\nprogram     {script} 'a b'\n" in shown
    assert not re.search(r"^(batch|framework|strategy)", shown, re.M)
    loaded = {line.split("|")[-1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert "hydra" in loaded and not loaded & HEAVY


@pytest.mark.parametrize(
    "words, messages",
    [
        ([], ["no program is named"]),
        (["--"], ["no program is named"]),
        (["--", "nothing.py"], ["'nothing.py' is not a file"]),
        (["--", "no_such_command", "x.py"], ["'no_such_command' is neither a file nor a command of this environment"]),
        (["cluster=slurm", "--", "no_such_command"], ["'no_such_command' is neither a file nor a command of this environment"]),
        (["--", "-m"], ["-m names no module"]),
        (["program.folder=nowhere", "--", "train.py"], ["program.folder=nowhere is not a folder"]),
        (["program.metrics=loss: (.*", "--", "src/train.py"], ["is not a regular expression"]),
        (["program.metrics=loss: (.*)", "--", "src/train.py"], ["has no named group for a metric"]),
        (["--", "src/train.py", "{args.lr}"], ["{args.lr} in the arguments of the program has no value; add args.lr=VALUE"]),
        (["args.lrr=1", "--", "src/train.py"], ["no argument of the program uses args.lrr; write {args.lrr} after --"]),
        (["checkpoint.monitor=bits", "--", "src/train.py"], ["checkpoint.monitor=bits may be better high or low"]),
        (["--", "README.md"], ["README.md is neither a Python script (.py) nor executable"]),
        (["cluster=slurm", "--", "tests/template/test_readme.py"], ["is not in the copy of the project that a job runs"]),
        (["-m", "args.lr=range(0)", "--", "src/train.py", "{args.lr}"], ["is an empty sweep"]),
        (["args.lr=1,2", "--", "src/train.py", "{args.lr}"], ["'++args.lr=1,2' is a sweep over several values: add -m"]),
        (["--cfg", "job", "--", "src/train.py"], ["--cfg is not a flag of src/run.py"]),
        (["experiment=debug", "--", "src/train.py"], ["experiment: a key of a training"]),
        (
            ["optimizer.lr=3", "model=mlp", "clustr=x", "trainer.nodes=x", "--", "nothing.py"],
            ["optimizer.lr, model: a key of a training", "'nothing.py' is", "'clustr' is not a key", "trainer.nodes=x is not"],
        ),
    ],
)  # fmt: skip
def test_refused_with_all_problems_and_nothing_written(run, tmp_path, words, messages):
    done = run(*words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert all(message in done.stderr for message in messages), done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= len(messages) + 1
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("name", ["lr=0.1", "a,(it's"])
def test_a_training_is_not_resumed_as_a_program(run: Run, make_run: MakeRun, name: str) -> None:
    folder = make_run()[1].path
    folder = folder.rename(folder.with_name(name))
    done = run(f"resume={folder}", "cluster.partition=a,b")
    resume = f"resume={shlex.quote(str(folder))}"
    assert done.returncode == 2 and f"is a training: python src/train.py {resume}\n" in done.stderr


def test_what_can_not_be_started_is_refused_with_one_message(run: Run, script: str, latest: Latest) -> None:
    path = ROOT / script
    other = path.with_suffix("")
    other.write_text("#!/nothing/here\n")
    other.chmod(0o755)
    try:
        done = run("--", str(other))
    finally:
        other.unlink()
    assert done.returncode == 2 and "can't be started" in done.stderr and "#!/bin/bash" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert info(latest())["state"] == "failed"


def test_lines_of_two_ranks_are_not_mixed(run: Run, script: str) -> None:
    """A program may write a line in two parts, as Python does with PYTHONUNBUFFERED=1."""
    (ROOT / script).write_text(
        "import os, time\nfor _ in range(50):\n    os.write(1, b'rea'); time.sleep(0.001)\n    os.write(1, b'dy\\n')\n"
    )
    done = run("trainer.devices=2", "trainer.accelerator=cpu", "--", script)
    lines = done.stdout.split("\n")
    assert lines.count("ready") == lines.count("[rank 1] ready") == 50, done.stdout


def of_a_job(run: RunDir, stop: Stop, launched_by: str = "srun") -> RankProcess:
    """Rank 0 of two, in a job."""
    RunRecorder(run).record_start(2)
    topology = Topology(world_size=2, launched_by=launched_by)
    return RankProcess(run, topology, stop, RunRecorder(run))


@pytest.mark.parametrize("launched_by", ["srun", "local"])
def test_rank_0_does_not_end_the_step_while_others_save(make_run: MakeRun, launched_by: str) -> None:
    """srun and `LocalRanks` kill them at any code but 0, so their callers read the state."""
    config, run = make_run()
    stop = Stop()
    stop.requested = "SIGUSR1"
    config = replace(config, program=replace(config.program, command=["a.py"]))
    assert _finish(config, of_a_job(run, stop, launched_by), 143) == 0
    assert info(run.path)["state"] == "preempted"
    assert _finish(config, of_a_job(run, Stop(), launched_by), 75) == 75  # the others may not know of it


def test_an_end_that_can_not_be_recorded_is_an_error(make_run, monkeypatch, capsys):
    config, run = make_run()
    process = of_a_job(run, Stop())

    def full(*args: object, **fields: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RunDir, "update", full)
    config = replace(config, program=replace(config.program, command=["a.py"]))
    assert _finish(config, process, 0) == 1
    assert "can't be written" in capsys.readouterr().err
    monkeypatch.setattr("train_anywhere.program.run_program.OTHERS_S", 0)
    assert _finish(config, process, 7) == 7
    printed = capsys.readouterr().err
    assert "ended with exit code 7" in printed and "No space left" in printed


def test_the_program_of_another_user_needs_trust(run, script, tmp_path, latest, monkeypatch):
    assert run("--", script, "a").returncode == 0
    folder = latest()
    (folder / "run.json").write_text(json.dumps({**info(folder), "state": "failed"}))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "someone"))
    done = run(f"resume={folder}")
    assert done.returncode == 2 and "program" in done.stderr and "trust=true" in done.stderr, done.stderr
    assert run(f"resume={folder}", "trust=true").returncode == 0
