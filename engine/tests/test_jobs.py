"""The verbs with a scripted scheduler. A real one is in tests/slurm."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import train_anywhere.distributed.programs
import train_anywhere.slurm.scheduler.queue
from train_anywhere.commands import jobs
from train_anywhere.files import ENGINE, ROOT
from train_anywhere.runs.reopen.trust import remember_script
from train_anywhere.slurm.status.show_logs import Tail

Make = Callable[..., Path]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that squeue prints and scancel empties. Clients record in `asked`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    said = tmp_path / "squeue"
    said.write_text("")
    programs = {
        "squeue": f"cat {said}",
        "scancel": f'echo scancel "$@" >>{tmp_path}/asked; : >{said}',
        "sacct": "echo Slurm accounting storage is disabled >&2; exit 1",
        "scontrol": "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1",
        "sbatch": f'echo sbatch "$@" >>{tmp_path}/asked; echo 9',
    }
    for name, line in programs.items():
        client(folder, name, line)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return said


def client(folder: Path, name: str, script: str) -> None:
    """Write a scheduler's client that runs `script` into a folder."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def make(results: Path) -> Make:
    """`make("20260101-000000-aaaa", "7", state="queued")`: the folder of a submitted run."""

    def run(run_id: str, *job_ids: str, script: bool = True, **info: object) -> Path:
        folder = results / "digits" / run_id
        folder.mkdir(parents=True)
        (folder / "config.yaml").touch()
        (folder / "run.json").write_text(json.dumps({"format": 2, "cluster": "slurm", **info}))
        (folder / "jobs.txt").write_text("".join(f"{i}\n" for i in job_ids))
        if script:
            (folder / "job.sbatch").write_text("#!/bin/sh\n")
            remember_script(folder / "job.sbatch")
        (results / "latest").unlink(missing_ok=True)
        (results / "latest").symlink_to(folder)
        return folder

    return run


def run(results: Path, *words: str) -> int:
    return jobs.main([*words, "--results", str(results)])


@pytest.mark.parametrize("name", [None, "20260101-000000-aaaa", "7", "FOLDER"])
def test_a_run_is_found_by_what_is_at_hand(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str], name: str | None
) -> None:
    make("20250101-000000-bbbb", "77", state="completed")
    folder = make(
        "20260101-000000-aaaa",
        "7",
        state="completed",
        epoch=3,
        step=42,
        metrics={"test/acc": 0.5},
        restarts=2,
    )
    assert run(results, "status", *([] if name is None else [name.replace("FOLDER", str(folder))])) == 0
    said = capsys.readouterr().out
    assert said.startswith("20260101-000000-aaaa  completed  job 7 on slurm  epoch 3, step 42")
    assert "test/acc 0.5000" in said


def test_an_unknown_run(results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    make("20260101-000000-aaaa", "7")
    assert run(results, "status", "nothing") == 2
    assert "no run is called 'nothing'" in capsys.readouterr().err


def test_a_run_that_ran_here(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make("20260101-000000-aaaa", script=False, state="completed", epoch=2, step=30)
    assert run(results, "status") == 0
    said = capsys.readouterr().out
    assert said.startswith("20260101-000000-aaaa  completed  on this machine  epoch 2, step 30\n")
    refused = {
        "logs": "ran on this machine: what it printed went to its terminal, and no log was written.",
        "cancel": "ran on this machine and is completed: there is nothing to cancel.",
        "resubmit": "ran on this machine; resume it with `",
    }
    for verb, sentence in refused.items():
        assert run(results, verb) == 2
        assert f"20260101-000000-aaaa {sentence}" in capsys.readouterr().err


def test_a_run_that_runs_here_has_its_process(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cancel` asks that process to save and stop."""
    folder = make("20260101-000000-aaaa", script=False, state="running")
    code = "import sys, time; from pathlib import Path; from train_anywhere.runs.folder import RunDir\n"
    code += "from train_anywhere.runs.lock import RunLock\n"
    code += "with RunLock(RunDir(Path(sys.argv[1]))): print(flush=True); time.sleep(60)"
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ENGINE)}
    ) as process:
        assert process.stdout and process.stdout.readline() == b"\n"
        assert run(results, "status") == 0
        shown = capsys.readouterr().out
        assert (
            f"running  process {process.pid} on " in shown and "jobs.py cancel 20260101-000000-aaaa" in shown
        )
        assert run(results, "cancel") == 0
        assert f"process {process.pid} saves a checkpoint and stops" in capsys.readouterr().out
        assert process.wait(30) == -signal.SIGTERM
    run(results, "status")
    assert "aaaa  lost  on this machine" in capsys.readouterr().out
    assert run(results, "cancel") == 2
    assert "ran on this machine and is lost: there is nothing to cancel." in capsys.readouterr().err
    make("20260101-000000-bbbb", script=False, state="queued")
    assert run(results, "cancel") == 2
    assert "bbbb is starting on this machine: try again in a moment." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("queue", "state", "expected"),
    [
        ("7|PENDING\n", "queued", "pending"),
        ("7|RUNNING\n", "queued", "running"),
        ("7|COMPLETED\n", "completed", "completed"),
        ("7|FAILED\n", "failed", "failed"),
        ("7|TIMEOUT\n", "running", "timeout"),
        ("7|NODE_FAIL\n", "running", "node_fail"),
        ("", "running", "lost"),
        ("", "preempted", "preempted"),
        ("7|PENDING\n", "preempted", "pending"),
    ],
)
def test_the_scheduler_knows_the_living_and_run_json_the_ended(
    results: Path,
    squeue: Path,
    make: Make,
    capsys: pytest.CaptureFixture[str],
    queue: str,
    state: str,
    expected: str,
) -> None:
    make("20260101-000000-aaaa", "7", state=state)
    squeue.write_text(queue)
    run(results, "status")
    assert capsys.readouterr().out.split()[1] == expected


def sweep(results: Path, make: Make, states: list[str]) -> str:
    base = results / "digits" / "20260101-000000-aaaa"
    base.mkdir(parents=True)
    (base / "job.sbatch").write_text("#!/bin/sh\n")
    remember_script(base / "job.sbatch")
    for member, state in enumerate(states):
        make(f"{base.name}-{member}", f"7_{member}", script=False, state=state)
    return base.name


def test_failed_members_are_submitted_again_alone(
    results: Path, squeue: Path, make: Make, tmp_path: Path
) -> None:
    name = sweep(results, make, ["completed", "failed", "cancelled", "running", "failed"])
    squeue.write_text("7_3|RUNNING\n")
    assert run(results, "resubmit", name, "--failed") == 0
    script = results / "digits" / name / "job.sbatch"
    assert (tmp_path / "asked").read_text() == f"sbatch --parsable --array=1,4 {script}\n"
    assert (results / "digits" / f"{name}-4" / "jobs.txt").read_text() == "7_4\n9_4\n"
    assert json.loads((results / "digits" / f"{name}-1" / "run.json").read_text())["state"] == "queued"


def test_one_member_or_all_that_are_not_done(results: Path, squeue: Path, make: Make, tmp_path: Path) -> None:
    name = sweep(results, make, ["completed", "failed", "cancelled"])
    run(results, "resubmit", f"{name}-1")
    run(results, "resubmit", name)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[2] for line in asked] == ["--array=1", "--array=1-2"]


def test_a_running_or_complete_run_is_not_submitted_again(
    results: Path, squeue: Path, make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make("20260101-000000-aaaa", "7", state="running")
    squeue.write_text("7|RUNNING\n")
    assert run(results, "resubmit") == 2
    assert "20260101-000000-aaaa is running" in capsys.readouterr().err
    make("20260102-000000-aaaa", "8", state="completed")
    assert run(results, "resubmit") == 2
    assert not (tmp_path / "asked").exists()


def test_cancel_takes_every_living_job_of_a_chain(
    results: Path, squeue: Path, make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make("20260101-000000-aaaa", "7", "8", "9", state="queued")
    squeue.write_text("7|COMPLETED\n8|RUNNING\n9|PENDING\n")
    assert run(results, "cancel") == 0
    assert (tmp_path / "asked").read_text() == "scancel 8 9\n"
    assert json.loads((folder / "run.json").read_text())["state"] == "cancelled"


def test_logs_are_those_of_the_newest_job(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make("20260101-000000-aaaa", "7", "8", state="running")
    (folder / "slurm-7.out").write_text("old\n")
    (folder / "slurm-8.out").write_text("new\n")
    (folder / "slurm-8.err").write_text("")
    assert run(results, "logs") == 0
    said = capsys.readouterr().out
    assert "new\n" in said and "old" not in said


def test_logs_of_a_job_that_has_not_started(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make("20260101-000000-aaaa", "7", state="queued")
    assert run(results, "logs") == 2
    assert "no log yet" in capsys.readouterr().err


DOWN = "echo slurm_load_jobs error: Unable to contact slurm controller >&2; exit 1"
BROKEN = {
    "fails": (
        DOWN,
        "squeue failed with exit code 1: slurm_load_jobs error: Unable to contact slurm controller.",
    ),
    "prints bytes": (
        r"printf '\377\376\n'",
        "squeue answered '\\ufffd\\ufffd', which is not a job and its state.",
    ),
    "is killed": ("kill -9 $$", "squeue failed with signal 9."),
    "hangs": ("sleep 60 & sleep 60", "squeue did not answer within 0.5 s and was killed."),
}
"""Fault injection: the script of a client of Slurm, and the message."""


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("verb", ["status", "cancel", "resubmit"])
def test_a_queue_that_can_not_be_asked_is_not_an_empty_one(
    results: Path,
    squeue: Path,
    make: Make,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    verb: str,
) -> None:
    folder = make("20260101-000000-aaaa", "7", state="running")
    before = (folder / "run.json").read_bytes()
    script, sentence = BROKEN[fault]
    client(squeue.with_name("bin"), "squeue", script)
    monkeypatch.setattr(train_anywhere.distributed.programs, "QUERY_TIMEOUT_S", 0.5)
    assert run(results, verb) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert {"cancel": "Nothing was cancelled.", "resubmit": "Nothing was submitted."}.get(
        verb, ""
    ) in said.err
    expected = ["20260101-000000-aaaa  run.json says running  job 7 on slurm"] if verb == "status" else []
    assert said.out.splitlines()[:1] == expected
    assert (folder / "run.json").read_bytes() == before
    assert not squeue.with_name("asked").exists()


@pytest.mark.parametrize("mode, reason", [(0o644, "Permission denied"), (0o755, "Exec format error")])
def test_a_client_that_can_not_be_started(
    results: Path,
    squeue: Path,
    make: Make,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    mode: int,
    reason: str,
) -> None:
    make("20260101-000000-aaaa", "7", state="running")
    program = squeue.with_name("bin") / "squeue"
    program.write_bytes(b"\x7fELF no program")
    program.chmod(mode)
    monkeypatch.setenv("PATH", str(program.parent))
    assert run(results, "cancel") == 2
    assert f"squeue can't be started: {reason}." in capsys.readouterr().err


def test_no_scheduler_here(
    results: Path, make: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make("20260101-000000-aaaa", "7", state="running")
    monkeypatch.setenv("PATH", "/nowhere")
    assert run(results, "status") == 2
    assert "squeue is not on this machine: run this on a login node" in capsys.readouterr().err


def test_an_accounting_that_can_not_be_asked_leaves_the_end_unknown(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make("20260101-000000-aaaa", "7", state="running", step=3, epoch=0)
    client(squeue.with_name("bin"), "sacct", "echo Connection refused >&2; exit 1")
    assert run(results, "status") == 0
    said = capsys.readouterr()
    assert "20260101-000000-aaaa  unknown  run.json says running  job 7 on slurm  epoch 0, step 3" in said.out
    assert "left the queue is not known: sacct failed with exit code 1: Connection refused." in said.err
    assert run(results, "resubmit", "--failed") == 2
    assert "nothing to submit again: 20260101-000000-aaaa is unknown. sacct failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("scancel", "sentence"),
    [
        ("echo Access/permission denied >&2; exit 210", "scancel failed with exit code 210: Access/permission denied; job 7 is pending."),
        ("true", "scancel was called, but job 7 is pending."),
        ("sleep 60", "scancel did not answer within 1 s and was killed."),
    ],
)  # fmt: skip
def test_a_job_is_cancelled_only_when_the_queue_says_so(
    results: Path,
    squeue: Path,
    make: Make,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    scancel: str,
    sentence: str,
) -> None:
    folder = make("20260101-000000-aaaa", "7", state="queued")
    squeue.write_text("7|PENDING\n")
    client(squeue.with_name("bin"), "scancel", scancel)
    monkeypatch.setattr(train_anywhere.distributed.programs, "QUERY_TIMEOUT_S", 1.0)
    monkeypatch.setattr(train_anywhere.slurm.scheduler.queue, "CANCEL_TIMEOUT_S", 0.2)
    assert run(results, "cancel") == 2
    said = capsys.readouterr()
    assert sentence in said.err and said.out == ""
    assert json.loads((folder / "run.json").read_text())["state"] == "queued"


def test_of_several_runs_each_is_told(
    results: Path, squeue: Path, make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = sweep(results, make, ["queued", "queued", "completed"])
    (results / "digits" / f"{name}-1" / "jobs.txt").write_text("seven\n")
    squeue.write_text("7_0|PENDING\n7_1|PENDING\n")
    assert run(results, "cancel", name) == 2
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        f"{name}-0: cancelled job 7_0.",
        f"{name}-2 has no queued or running job.",
    ]
    assert "has 'seven' in it, which is not a job id: correct or delete that line." in said.err


def test_a_refused_resubmission_leaves_the_run_as_it_was(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make("20260101-000000-aaaa", "7", state="failed")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    client(squeue.with_name("bin"), "sbatch", "echo sbatch: error: QOS limit >&2; exit 1")
    assert run(results, "resubmit") == 2
    assert "sbatch refused the job: sbatch: error: QOS limit" in capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_renamed_run_folder(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make("20260101-000000-aaaa", "7", state="failed")
    (folder / "job.sbatch").write_text(f"#!/bin/sh\nRUN={folder}\n")
    gold = folder.rename(folder.with_name("gold"))
    assert run(results, "status", str(gold)) == 0
    assert run(results, "status", "gold") == 0
    assert capsys.readouterr().out.count("gold  failed  job 7 on slurm") == 2
    assert run(results, "resubmit", "gold") == 2
    assert (
        f"was moved: its batch script still trains in {folder}; resume it with `" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("odd", "sentence"),
    [
        (lambda f: (f / "jobs.txt").write_bytes(b"\xff\xfe\n"), "which is not a job id: correct or delete that line."),
        (lambda f: (f / "job.sbatch").unlink(), "which scheduler has them is not known."),
        (lambda f: [(f / "jobs.txt").unlink(), (f / "jobs.txt").mkdir()], "jobs.txt can't be read: Is a directory."),
    ],
)  # fmt: skip
def test_odd_run_folders(
    results: Path,
    squeue: Path,
    make: Make,
    capsys: pytest.CaptureFixture[str],
    odd: Callable[[Path], object],
    sentence: str,
) -> None:
    folder = make("20260101-000000-aaaa", "7", state="failed")
    odd(folder)
    for verb in ("status", "logs", "cancel", "resubmit"):
        assert run(results, verb, str(folder)) == 2
        assert sentence in capsys.readouterr().err
    assert run(results, "logs", "-f", str(folder)) == 2
    assert sentence in capsys.readouterr().err


def test_a_run_without_jobs_txt_or_run_json(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make("20260101-000000-aaaa", "7")
    (folder / "jobs.txt").unlink()
    (folder / "run.json").unlink()
    assert run(results, "status") == 0
    assert "20260101-000000-aaaa  lost  job ? on None" in capsys.readouterr().out
    assert run(results, "logs") == 2
    assert "it has no job in jobs.txt" in capsys.readouterr().err


def test_results_that_are_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for name in ("missing", "file", "loop"):
        assert run(tmp_path / name, "status") == 2
        assert "there is no run in" in capsys.readouterr().err
        assert run(tmp_path / name, "status", "20260101-000000-aaaa") == 2
    assert run(tmp_path, "status", str(tmp_path / "loop")) == 2
    assert "can't be read: Too many levels of symbolic links." in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", ["", "**", "[", "..", "7" * 5000, "a/../../b", "~nobody/x"])
def test_names_that_mean_nothing(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    make("20260101-000000-aaaa", "7")
    assert run(results, "status", name) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_logs_of_bytes_and_of_a_log_that_goes_away(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make("20260101-000000-aaaa", "7", state="completed")
    assert run(results, "logs", "-f") == 2
    assert "has no log yet: no job of it (7) has started." in capsys.readouterr().err
    (folder / "slurm-7.out").write_bytes(b"\xff\xfe done\n")
    for words in (["logs"], ["logs", "-f"]):
        assert run(results, *words) == 0
        assert "\ufffd\ufffd done" in capsys.readouterr().out
    tail = Tail(folder / "slurm-7.out")
    assert tail.read_new().endswith("done\n")
    (folder / "slurm-7.out").write_text("again\n")
    assert tail.read_new() == "again\n"
    (folder / "slurm-7.out").unlink()
    assert tail.read_new() == ""


def test_what_came_of_scancel_is_not_claimed(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """The controller goes away between two questions."""
    folder = make("20260101-000000-aaaa", "7", state="queued")
    squeue.write_text("7|RUNNING\n")
    client(squeue.with_name("bin"), "scancel", f"echo gone >{squeue}")
    assert run(results, "cancel") == 2
    said = capsys.readouterr()
    assert "scancel was called, and the result is not known: squeue answered 'gone'" in said.err
    assert said.out == ""
    assert json.loads((folder / "run.json").read_text())["state"] == "queued"


def document(results: Path, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    """Return what a command prints with --json."""
    capsys.readouterr()
    assert run(results, *words, "--json") == code
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_a_sweep_with_a_failed_member(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    name = sweep(results, make, ["completed", "failed", "running", "queued"])
    for member in range(4):
        (results / "digits" / f"{name}-{member}" / "overrides.txt").write_text(f"model=mlp\nseed={member}\n")
    squeue.write_text("7_2|RUNNING\n7_3|PENDING\n")
    assert run(results, "status", name) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == ["run", "state", "where", "seed", "progress", "metrics"]
    rows = [(line.split()[0], line.split()[1], line.split()[6]) for line in said[1:5]]
    assert rows == [
        (f"{name}-{m}", s, f"{m}") for m, s in enumerate(["completed", "failed", "running", "pending"])
    ]
    told = document(results, capsys, "status", name)
    assert [one["state"] for one in told["runs"]] == ["completed", "failed", "running", "pending"]
    assert [one["overrides"]["seed"] for one in told["runs"]] == ["0", "1", "2", "3"]
    assert told["differing"] == ["seed"]
    assert [" ".join(c.split()[2:-3]) for c in told["next"]] == ["logs -f", "cancel", "resubmit --failed"]


def test_every_next_command_works_as_printed(
    results: Path,
    squeue: Path,
    make: Make,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From another folder: `logs` and `resubmit` of a failed run, a sweep and a running run."""
    monkeypatch.chdir(results.parent)
    name = sweep(results, make, ["failed", "running", "failed"])
    for number, member in enumerate(sorted(results.glob("digits/*-*-*-*"))):
        (member / f"slurm-7_{number}.out").write_text(f"of {member.name}\n")
    squeue.write_text("7_1|RUNNING\n")
    of_the_sweep = document(results, capsys, "status", name)
    client(
        squeue.with_name("bin"), "squeue", f"cat {squeue}; : >{squeue}"
    )  # the job ends when it was asked for
    typed = [*of_the_sweep["next"], *of_the_sweep["runs"][0]["next"], *of_the_sweep["runs"][1]["next"]]
    verbs = [shlex.split(command)[2] for command in typed]
    assert verbs == ["logs", "cancel", "resubmit", "logs", "resubmit", "logs", "cancel"]
    for command in typed:
        [_, program, *words] = shlex.split(command)
        assert (ROOT / "src" / "jobs.py").samefile(program)
        squeue.write_text("7_1|RUNNING\n" if "cancel" in words else "")
        code = jobs.main(words)
        said = capsys.readouterr()
        assert code == 0 or "there is nothing to submit again" in said.err, (command, said.err)


def test_list_tells_of_all_runs_newest_first(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Local runs are filtered the same way. Only runs that may be active query the scheduler."""
    make("20260101-000000-aaaa", script=False, state="completed", step=3, epoch=1)
    make("20260103-000000-aaaa", "9", state="completed")
    damaged = make("20260104-000000-aaaa", "8", state="running")
    make("20260102-000000-aaaa", "7", state="running")
    squeue.write_text("7|RUNNING\n")
    client(squeue.with_name("bin"), "squeue", f'echo "$@" >>{tmp_path}/asked; cat {squeue}')
    (damaged / "run.json").write_text("{")
    assert run(results, "list") == 2
    said = capsys.readouterr()
    assert [line.split()[:3] for line in said.out.splitlines()] == [
        ["run", "name", "state"],
        ["20260103-000000-aaaa", "digits", "completed"],
        ["20260102-000000-aaaa", "digits", "running"],
        ["20260101-000000-aaaa", "digits", "completed"],
    ]
    assert "error: 20260104-000000-aaaa: " in said.err and "is damaged" in said.err
    assert all("--jobs=7" in line for line in (tmp_path / "asked").read_text().splitlines())
    told = document(results, capsys, "list", code=2)
    assert [bool(one["trouble"]) for one in told["runs"]] == [True, False, False, False]
    assert len(told["trouble"]) == 1


def test_nothing_to_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("list", "best"):
        assert run(tmp_path, verb) == 2
        assert f"there is no run in {tmp_path} yet" in capsys.readouterr().err


def test_best_names_the_run(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, value in enumerate((0.5, 0.9, 0.7)):
        folder = make(f"2026010{number + 1}-000000-aaaa", script=False, state="completed")
        (folder / "config.yaml").write_text("checkpoint: {monitor: val/acc, mode: max}\n")
        (folder / "metrics.csv").write_text(f"step,epoch,val/acc\n7,1,{value}\n")
    assert run(results, "best") == 0
    said = capsys.readouterr()
    assert said.out == f"val/acc 0.9  20260102-000000-aaaa  step 7\n{results}/digits/20260102-000000-aaaa\n"
    assert said.err == "the highest of 3 runs named digits\n"
    told = document(results, capsys, "best")
    assert (told["id"], told["value"]) == ("20260102-000000-aaaa", 0.9)
    assert run(results, "best", "--metric", "val/loss") == 2
    assert "--mode" in capsys.readouterr().err


def test_an_unreachable_scheduler_in_json(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make("20260101-000000-aaaa", "7", state="running")
    client(squeue.with_name("bin"), "squeue", DOWN)
    told = document(results, capsys, "status", code=2)
    assert (told["runs"][0]["state"], told["runs"][0]["written"]) == ("", "running")
    assert "the states of jobs are not known" in told["trouble"][0]


@pytest.mark.parametrize("framework", ["lightning", pytest.param("keras", marks=pytest.mark.slow)])
def test_a_real_run_of_this_machine_while_it_trains_and_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], framework: str
) -> None:
    """Status reads the values that the training writes."""
    results = tmp_path / "results"
    words = [f"framework={framework}", "model=mlp", "trainer.max_epochs=100000", "monitor.progress=none"]
    words += [f"paths.results={results}"]
    command = [sys.executable, str(ROOT / "src" / "train.py"), *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as training:
        try:
            end = time.monotonic() + 90
            while not [*results.glob("digits/*/monitor/live.json")]:
                assert training.poll() is None and time.monotonic() < end
                time.sleep(0.1)
            one: dict[str, Any] = {"progress": {"rate": None}}
            while one["progress"]["rate"] is None or one["checkpoint"] is None:
                assert time.monotonic() < end
                [one] = document(results, capsys, "status")["runs"]
            progress = one["progress"]
            assert (one["state"], one["alive"]) == ("running", True)
            assert "jobs.py cancel" in one["next"][0]
            assert progress["section"] in ("train", "validation", "checkpoint")
            assert 0 < progress["step"] < progress["steps"] == 1300000
            assert progress["rate"] > 0 and progress["seconds_left"] > 0 and progress["moved"] < 30
            assert 0 <= progress["data_wait"] <= 1
            assert run(results, "status") == 0
            said = capsys.readouterr().out
            assert f"running  process {training.pid} on " in said
            assert " images/s, " in said and " left, " in said
            assert "waits for data " in said
        finally:
            training.terminate()
            training.wait(60)
    [one] = document(results, capsys, "status")["runs"]
    assert (one["state"], one["alive"]) == ("preempted", False)
    assert one["progress"]["step"] == one["checkpoint"]["step"]
    logs, resume = map(shlex.split, one["next"])  # what it printed is in log.txt
    assert (logs[2], resume[2]) == ("logs", f"resume={results.resolve()}/digits/{one['id']}")


@pytest.mark.parametrize("verb", ["status", "list", "best", "logs"])
@pytest.mark.quick("list", "best")
def test_a_look_at_a_run_loads_nothing_heavy(results: Path, make: Make, verb: str) -> None:
    """The commands import no framework or numpy. Only a terminal uses rich."""
    make("20260101-000000-aaaa", script=False, state="completed")
    command = [
        sys.executable,
        "-X",
        "importtime",
        str(ROOT / "src" / "jobs.py"),
        verb,
        "--results",
        str(results),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    modules = {line.split("|")[-1].strip().split(".")[0] for line in lines}
    assert "argparse" in modules
    assert not modules & {"torch", "tensorflow", "keras", "lightning", "numpy", "rich", "hydra"}


def refused_names(results: Path, capsys: pytest.CaptureFixture[str], verb: str, name: str) -> str:
    options = ["--yes"] if verb == "prune" else []
    assert run(results, verb, name, *options) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("verb", ["status", "cancel", "prune", "save", "resubmit"])
def test_a_dot_is_the_current_folder_and_not_the_newest_run(
    results: Path, make: Make, capsys: pytest.CaptureFixture[str], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make("20260101-000000-aaaa", state="completed", script=False)
    monkeypatch.chdir(results)
    for name in (".", "./", "..", "code", "digits"):
        assert "no run is called" in refused_names(results, capsys, verb, name)
    assert folder.is_dir()


def test_a_dot_in_a_run_folder_is_that_run(
    results: Path, make: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    older = make("20260101-000000-aaaa", state="completed", script=False)
    make("20260101-000001-bbbb", state="completed", script=False)
    monkeypatch.chdir(older)
    monkeypatch.setenv("PWD", str(older))
    assert run(results, "status", ".") == 0
    assert "20260101-000000-aaaa" in capsys.readouterr().out


def test_a_name_of_several_runs_is_refused(
    results: Path, make: Make, squeue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that a copied folder lists too, and an id below two names."""
    first = make("20260101-000000-aaaa", "7", state="completed")
    shutil.copytree(first, first.with_name("copy"))
    shutil.copytree(first, results / "other" / first.name)
    for name in ("7", first.name):
        said = refused_names(results, capsys, "prune", name)
        assert f"{name} names" in said and "give one of these folders" in said
    latest = results / "other" / "latest"
    shutil.copytree(first, latest)
    assert "latest names 2 runs" in refused_names(results, capsys, "prune", "latest")
    assert first.is_dir() and latest.is_dir()
