"""The verbs that look at runs: status, logs, list, best."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.tests.commands.conftest import Verbs
from tools.testing.processes import run_python, wait_until
from train_anywhere.commands import jobs
from train_anywhere.files import ROOT
from train_anywhere.slurm.status.show_logs import Tail


@pytest.mark.parametrize("name", [None, "20260101-000000-aaaa", "7", "FOLDER"])
def test_a_run_is_found_by_what_is_at_hand(verbs: Verbs, name: str | None) -> None:
    verbs.make("20250101-000000-bbbb", "77", state="completed")
    facts = {"epoch": 3, "step": 42, "metrics": {"test/acc": 0.5}, "restarts": 2}
    folder = verbs.make("20260101-000000-aaaa", "7", state="completed", **facts)
    said, _ = verbs.run("status", *([] if name is None else [name.replace("FOLDER", str(folder))]))
    assert said.startswith("20260101-000000-aaaa  completed  job 7 on slurm  epoch 3, step 42")
    assert "test/acc 0.5000" in said


STATES = [
    ("7|PENDING\n", "queued", "pending"), ("7|RUNNING\n", "queued", "running"), ("7|COMPLETED\n", "completed", "completed"),
    ("7|FAILED\n", "failed", "failed"), ("7|TIMEOUT\n", "running", "timeout"), ("7|NODE_FAIL\n", "running", "node_fail"),
    ("", "running", "lost"), ("", "preempted", "preempted"), ("7|PENDING\n", "preempted", "pending"),
]  # fmt: skip
"""What squeue prints, the state in run.json, and the state that `status` prints."""


@pytest.mark.parametrize(("queue", "state", "expected"), STATES)
def test_the_scheduler_knows_the_living_and_run_json_the_ended(verbs, queue, state, expected):
    verbs.make("20260101-000000-aaaa", "7", state=state)
    verbs.queue.write_text(queue)
    assert verbs.run("status")[0].split()[1] == expected


def test_logs_are_those_of_the_newest_job(verbs: Verbs) -> None:
    folder = verbs.make("20260101-000000-aaaa", "7", "8", state="running")
    for name, text in {"slurm-7.out": "old\n", "slurm-8.out": "new\n", "slurm-8.err": ""}.items():
        (folder / name).write_text(text)
    said, _ = verbs.run("logs")
    assert "new\n" in said and "old" not in said


def test_a_run_without_jobs_txt_or_run_json(verbs: Verbs) -> None:
    folder = verbs.make("20260101-000000-aaaa", "7")
    (folder / "jobs.txt").unlink()
    (folder / "run.json").unlink()
    assert "20260101-000000-aaaa  lost  job ? on None" in verbs.run("status")[0]
    assert "it has no job in jobs.txt" in verbs.refused("logs")


def test_results_that_are_no_folder(verbs: Verbs, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for name in ("missing", "file", "loop"):
        assert "there is no run in" in verbs.refused("status", results=tmp_path / name)
        verbs.refused("status", "20260101-000000-aaaa", results=tmp_path / name)
    said = verbs.refused("status", str(tmp_path / "loop"), results=tmp_path)
    assert "can't be read: Too many levels of symbolic links." in said.splitlines()[-1]
    (tmp_path / "empty").mkdir()
    for verb in ("list", "best"):
        assert f"there is no run in {tmp_path}/empty yet" in verbs.refused(verb, results=tmp_path / "empty")


def test_logs_of_bytes_and_of_a_log_that_goes_away(verbs: Verbs) -> None:
    folder = verbs.make("20260101-000000-aaaa", "7", state="completed")
    for words in (["logs"], ["logs", "-f"]):
        assert "has no log yet: no job of it (7) has started." in verbs.refused(*words)
    (folder / "slurm-7.out").write_bytes(b"\xff\xfe done\n")
    for words in (["logs"], ["logs", "-f"]):
        assert "\ufffd\ufffd done" in verbs.run(*words)[0]
    tail = Tail(folder / "slurm-7.out")
    assert tail.read_new().endswith("done\n")
    (folder / "slurm-7.out").write_text("again\n")
    assert tail.read_new() == "again\n"
    (folder / "slurm-7.out").unlink()
    assert tail.read_new() == ""


def test_a_sweep_with_a_failed_member(verbs: Verbs) -> None:
    states = ["completed", "failed", "running", "pending"]
    name = verbs.sweep("completed", "failed", "running", "queued")
    for member in range(4):
        (verbs.results / "digits" / f"{name}-{member}" / "overrides.txt").write_text(
            f"model=mlp\nseed={member}\n"
        )
    verbs.queue.write_text("7_2|RUNNING\n7_3|PENDING\n")
    said = verbs.run("status", name)[0].splitlines()
    for member, line in enumerate(said[1:5]):
        assert line.split()[:3] == [f"{name}-{member}", "digits", states[member]] and f"seed={member}" in line
    told = verbs.json("status", name)
    assert [one["state"] for one in told["runs"]] == states
    assert [one["overrides"]["seed"] for one in told["runs"]] == ["0", "1", "2", "3"]
    assert told["differing"] == ["seed"]
    assert [" ".join(c.split()[2:-3]) for c in told["next"]] == ["logs -f", "cancel", "resubmit --failed"]


def test_every_next_command_works_as_printed(verbs: Verbs, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another folder: `logs` and `resubmit` of a failed run, a sweep and a running run."""
    monkeypatch.chdir(verbs.results.parent)
    name = verbs.sweep("failed", "running", "failed")
    for number, member in enumerate(sorted(verbs.results.glob("digits/*-*-*-*"))):
        (member / f"slurm-7_{number}.out").write_text(f"of {member.name}\n")
    verbs.queue.write_text("7_1|RUNNING\n")
    told = verbs.json("status", name)
    verbs.client("squeue", f"cat {verbs.queue}; : >{verbs.queue}")  # the job ends when it was asked for
    typed = [*told["next"], *told["runs"][0]["next"], *told["runs"][1]["next"]]
    names = [shlex.split(command)[2] for command in typed]
    assert names == ["logs", "cancel", "resubmit", "logs", "resubmit", "logs", "cancel"]
    for command in typed:
        [_, program, *words] = shlex.split(command)
        assert (ROOT / "src" / "jobs.py").samefile(program)
        verbs.queue.write_text("7_1|RUNNING\n" if "cancel" in words else "")
        code = jobs.main(words)
        said = verbs.capsys.readouterr()
        assert code == 0 or "there is nothing to submit again" in said.err, (command, said.err)


def test_list_tells_of_all_runs_newest_first(verbs: Verbs) -> None:
    """Local runs are filtered the same way. Only runs that may be active query the scheduler."""
    verbs.make("20260101-000000-aaaa", script=False, state="completed", step=3, epoch=1)
    verbs.make("20260103-000000-aaaa", "9", state="completed")
    damaged = verbs.make("20260104-000000-aaaa", "8", state="running")
    verbs.make("20260102-000000-aaaa", "7", state="running")
    verbs.queue.write_text("7|RUNNING\n")
    verbs.client("squeue", f'echo "$@" >>{verbs.asked}; cat {verbs.queue}')
    (damaged / "run.json").write_text("{")
    out, err = verbs.run("list", code=2)
    assert [line.split()[:3] for line in out.splitlines()] == [
        ["run", "name", "state"], ["20260103-000000-aaaa", "digits", "completed"],
        ["20260102-000000-aaaa", "digits", "running"], ["20260101-000000-aaaa", "digits", "completed"],
    ]  # fmt: skip
    assert "error: 20260104-000000-aaaa: " in err and "is damaged" in err
    assert all("--jobs=7" in line for line in verbs.asked.read_text().splitlines())
    told = verbs.json("list", code=2)
    assert [bool(one["trouble"]) for one in told["runs"]] == [True, False, False, False]
    assert len(told["trouble"]) == 1


def test_the_cost_of_runs(verbs: Verbs) -> None:
    """Two hours on two GPUs, one of them with power samples, and a member that shares a GPU with three others."""
    until = {"started": "2026-01-01T08:00:00+00:00", "until": "2026-01-01T09:00:00+00:00"}
    hour = until | {"seconds": {"step": 3600}}
    folder = verbs.make("20260101-000000-aaaa", state="completed", gpus=2, attempts=[hour, hour])
    verbs.make("20260101-000000-bbbb", state="completed", gpus=0.25, attempts=[hour])
    (folder / "monitor").mkdir()
    (folder / "monitor/n1.csv").write_text("time,gpu0_power_w\n1,500\n")
    sums = {"gpu0_power_w": [1, 7200, 500, 720, 720 * 500]}
    (folder / "monitor/n1.json").write_text(json.dumps({"gpus": [{"index": 0}], "sums": sums}))
    (head, row) = (line.split() for line in verbs.run("list", "--cost")[0].splitlines())
    assert head == ["name", "user", "runs", "GPU", "hours", "kWh"]
    assert row == ["digits", row[1], "2", "4.25", "1.00"]
    written = verbs.run("list", "--csv", "--name", "dig*")[0]
    assert written == f"name,user,runs,gpu_hours,kwh\ndigits,{row[1]},2,4.25,1.00\n"


def test_best_names_the_run(verbs: Verbs) -> None:
    for number, value in enumerate((0.5, 0.9, 0.7)):
        folder = verbs.make(f"2026010{number + 1}-000000-aaaa", script=False, state="completed")
        (folder / "config.yaml").write_text("checkpoint: {monitor: val/acc, mode: max}\n")
        (folder / "metrics.csv").write_text(f"step,epoch,val/acc\n7,1,{value}\n")
    out, err = verbs.run("best")
    assert out == f"val/acc 0.9  20260102-000000-aaaa  step 7\n{verbs.results}/digits/20260102-000000-aaaa\n"
    assert err == "the highest of 3 runs named digits\n"
    told = verbs.json("best")
    assert (told["id"], told["value"]) == ("20260102-000000-aaaa", 0.9)
    assert "--mode" in verbs.refused("best", "--metric", "val/loss")


@pytest.mark.parametrize("framework", ["lightning", pytest.param("keras", marks=pytest.mark.slow)])
def test_a_real_run_of_this_machine_while_it_trains_and_after(verbs: Verbs, framework: str) -> None:
    """Status reads the values that the training writes."""
    words = [f"framework={framework}", "model=mlp", "trainer.max_epochs=100000", "monitor.progress=none"]
    command = [sys.executable, str(ROOT / "src" / "train.py"), *words, f"paths.results={verbs.results}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as training:
        try:
            wait_until(lambda: [*verbs.results.glob("digits/*/monitor/live.json")], training)
            shown: dict[str, Any] = {}

            def has_all() -> bool:
                [found] = verbs.json("status")["runs"]
                shown.update(found)
                known = (found["progress"]["rate"], found["progress"]["data_wait"], found["checkpoint"])
                return None not in known

            wait_until(has_all, training)
            one, progress = shown, shown["progress"]
            assert (one["state"], one["alive"]) == ("running", True) and "jobs.py cancel" in one["next"][0]
            assert progress["section"] in ("train", "validation", "checkpoint")
            assert 0 < progress["step"] < progress["steps"] == 1300000
            assert progress["rate"] > 0 and progress["seconds_left"] > 0 and progress["moved"] < 100
            assert 0 <= progress["data_wait"] <= 1
            said, _ = verbs.run("status")
            for part in (f"running  process {training.pid} on ", " images/s, ", " left, ", "waits for data "):
                assert part in said
        finally:
            training.terminate()
            training.wait(60)
    [one] = verbs.json("status")["runs"]
    assert (one["state"], one["alive"]) == ("preempted", False)
    assert one["progress"]["step"] == one["checkpoint"]["step"]
    logs, resume = map(shlex.split, one["next"])  # what it printed is in log.txt
    assert (logs[2], resume[2]) == ("logs", f"resume={verbs.results.resolve()}/digits/{one['id']}")


@pytest.mark.parametrize("verb", ["status", "list", "best", "logs"])
@pytest.mark.quick("list", "best")
def test_a_look_at_a_run_loads_nothing_heavy(verbs: Verbs, verb: str) -> None:
    """The commands import no framework or numpy. Only a terminal uses rich."""
    verbs.make(script=False, state="completed")
    program = [str(ROOT / "src" / "jobs.py"), verb, "--results", str(verbs.results)]
    done = run_python("-X", "importtime", *program)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    modules = {line.split("|")[-1].strip().split(".")[0] for line in lines}
    assert "argparse" in modules
    assert not modules & {"torch", "tensorflow", "keras", "lightning", "numpy", "rich", "hydra"}


def test_a_dot_in_a_run_folder_is_that_run(verbs: Verbs, monkeypatch: pytest.MonkeyPatch) -> None:
    older = verbs.make(state="completed", script=False)
    verbs.make("20260101-000001-bbbb", state="completed", script=False)
    monkeypatch.chdir(older)
    monkeypatch.setenv("PWD", str(older))
    assert "20260101-000000-aaaa" in verbs.run("status", ".")[0]
