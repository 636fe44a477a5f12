"""Pages for people, of made-up reports. Real ones are read in commands/test_jobs_looks.py."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.tests.slurm.scripts import tool
from train_anywhere.features.sampler import Gpu, columns
from train_anywhere.runs.facts import RecordedCheckpoint, RecordedProgress
from train_anywhere.runs.summary import duration
from train_anywhere.slurm.scheduler.queue import PendingJob, query_queue
from train_anywhere.slurm.status.gather import Report, differing_keys, sweep_commands
from train_anywhere.slurm.status.text_page import list_runs, page, sample_line

PATH = Path("/shared/results/digits/20260101-000000-aaaa")

RUNNING = Report(
    id=PATH.name,
    path=PATH,
    state="running",
    written="running",
    where="job 7 on slurm",
    hosts=("node1", "node2"),
    progress=RecordedProgress(
        3,
        10,
        230,
        900,
        "train",
        1234.4,
        "images",
        200.0,
        2.0,
        0.04,
        {"lr": 0.1, "val/loss": None, "val/acc": 0.5},
        0.91,
    ),
    nodes={"node1": {"sample": {"cpu_use_percent": 45}}, "node2": {}},
    verdicts=("rank 1 takes 1.52 times as long as the others",),
    checkpoint=RecordedCheckpoint(200, PATH / "checkpoints" / "00000200", 300.0),
    attempts=2,
    steps_lost=1,
    resumed="resumed 1 time, 1 step lost",
    logs=(PATH / "slurm-7.out",),
    tensorboard={"url": "http://node1:6006", "tunnel": "ssh -L 6006:node1:6006 login"},
    next=("jobs.py logs", "jobs.py cancel"),
)

TEXT = """\
20260101-000000-aaaa  running  job 7 on slurm  epoch 3/10, step 230/900  resumed 1 time, 1 step lost  val/loss nan  val/acc 0.5000
Run folder:  /shared/results/digits/20260101-000000-aaaa
Nodes:       node1, node2
Now:         train, 1234 images/s, 3 min left, waits for data 4% of the time, efficiency 91%, last progress 2 s ago
node1:       CPUs 45%
Note:        rank 1 takes 1.52 times as long as the others
Checkpoint:  step 200, 5 min ago, 30 steps since
Log:         /shared/results/digits/20260101-000000-aaaa/slurm-7.out
TensorBoard: http://node1:6006  ssh -L 6006:node1:6006 login
Next:        jobs.py logs
             jobs.py cancel"""


def test_a_page_has_all_that_is_known() -> None:
    assert page(RUNNING) == TEXT


def test_a_page_fits_the_terminal() -> None:
    """Sentences break between words. A command stays whole on its own line."""
    command = "/venv/bin/python src/evaluate.py /shared/results/digits/20260101-000000-aaaa"
    shown = page(replace(RUNNING, next=(command,)), 80, colors=True).splitlines()
    assert shown[0].startswith(f"{PATH.name}  \x1b[38;5;31mrunning\x1b[0m  job 7 on slurm")
    assert "Now:         train, 1234 images/s, 3 min left, waits for data 4% of the time," in shown
    assert "             efficiency 91%, last progress 2 s ago" in shown
    assert shown[-2:] == ["Next:", f"    {command}"]
    assert max(map(len, shown[1:])) <= 80


def test_each_log_has_its_line() -> None:
    shown = page(replace(RUNNING, logs=(PATH / "slurm-7.out", PATH / "slurm-7.err"))).splitlines()
    assert f"Log:         {PATH}/slurm-7.out" in shown and f"             {PATH}/slurm-7.err" in shown


def test_what_is_not_known_has_no_row() -> None:
    assert (
        page(Report("gold", PATH, state="lost", where="job 7 on None"))
        == f"gold  lost  job 7 on None\nRun folder:  {PATH}"
    )


def test_why_a_job_waits() -> None:
    waiting = Report("a", PATH, state="pending", pending=PendingJob("Resources", "2026-11-22T12:00:00"))
    assert "Waits:       Resources: not enough nodes are free yet" in page(waiting)
    assert "; expected to start 2026-11-22T12:00:00" in page(waiting)
    assert "Waits:       no reason is given" in page(Report("a", PATH, state="pending", pending=PendingJob()))


def member(number: int, state: str, **overrides: str) -> Report:
    metrics = RecordedProgress(step=5, epoch=1, metrics={"val/acc": number / 10})
    return Report(
        f"s-{number}",
        PATH,
        state=state,
        where="job",
        progress=metrics,
        overrides={"model": "mlp", **overrides},
    )


def test_members_of_a_sweep_have_columns_for_what_differs() -> None:
    sweep = [member(0, "completed", seed="1"), member(1, "failed", seed="20"), member(2, "running")]
    assert differing_keys(sweep) == ["seed"]
    assert [row.split()[-1] for row in list_runs(sweep, None).splitlines()] == [
        "differs",
        "seed=1",
        "seed=20",
        "-",
    ]


@pytest.mark.parametrize(
    ("scheduler", "job", "command"),
    [("slurm", "7_{}", "scontrol release 7_0,7_1"), ("pbs", "7[]_{}.pbs", "qrls '7[0].pbs' '7[1].pbs'")],
)
def test_held_members_of_a_sweep_are_released_by_their_scheduler(
    scheduler: str, job: str, command: str
) -> None:
    held = PendingJob("JobHeldUser")
    sweep = [replace(member(n, "pending"), jobs=(job.format(n),), pending=held) for n in range(2)]
    assert sweep_commands("s", scheduler, sweep)[0] == command


def test_who_may_still_train() -> None:
    alive = [
        ("running", "running"),
        ("resizing", "running"),
        ("", "queued"),
    ]  # resizing: one of Slurm's rarer ones
    over = [
        ("", "completed"),
        ("lost", "running"),
        ("unknown", "running"),
        ("preempted", "preempted"),
        ("node_fail", "running"),
    ]
    states = [
        (s, written) for s, written in alive + over if Report("a", PATH, state=s, written=written).alive
    ]
    assert states == alive


def test_durations() -> None:
    texts = {0.2: "0 s", 89: "89 s", 91: "2 min", 5000: "83 min", 5400: "1 h 30 min", 172800: "2 d 0 h"}
    assert {seconds: duration(seconds) for seconds in texts} == texts


def test_a_checkpoint_is_progress_and_a_job_that_ends_makes_none() -> None:
    saved = replace(RUNNING, checkpoint=RecordedCheckpoint(10**6, PATH, 1.0))
    assert f"step {10**6}" in page(saved).splitlines()[0] and "last progress 1 s ago" in page(saved)
    [now] = [
        line for line in page(replace(saved, state="completing")).splitlines() if line.startswith("Now:")
    ]
    assert now.split()[1:] == [RUNNING.progress.section]


def test_a_dependency_names_the_run() -> None:
    waits = Report("a", PATH, state="pending", pending=PendingJob("Dependency"), overrides={"after": "first"})
    assert "Waits:       Dependency: it starts when another job ends, here after=first" in page(waits)


def content(gpus: int, age: float = 0.0) -> dict[str, Any]:
    """As the sampler writes it."""
    found = [
        Gpu(i, f"GPU-{i}", "H100", memory_gib=80.0, use_percent=90.0 - i, memory_used_gib=34.2)
        for i in range(gpus)
    ]
    known = [{"index": g.index, "name": g.name, "memory_gib": g.memory_gib} for g in found]
    sample = {"time": time.time() - age, "cpu_use_percent": 45.4, **columns(found)}
    return {"host": "n", "every_seconds": 10, "gpus": known, "sample": sample}


def test_each_gpu_has_its_use() -> None:
    assert sample_line(content(2)) == "GPU 0 90%, 34 of 80 GiB; GPU 1 89%, 34 of 80 GiB; CPUs 45%"


def test_of_many_there_is_the_mean() -> None:
    assert sample_line(content(16)) == "16 GPUs 82% on average, 75% the least; CPUs 45%"


def test_an_old_sample_says_so() -> None:
    assert sample_line(content(0, age=100)) == "CPUs 45%; 100 s ago"


@pytest.mark.parametrize(
    "odd", [{}, {"sample": 3}, {"sample": {"gpu0_use_percent": None}}, {"gpus": [3], "sample": {"x": "y"}}]
)
def test_what_it_does_not_know_it_leaves_out(odd: dict[str, Any]) -> None:
    assert sample_line(odd) == ""


QSTAT = """Job Id: 7.server
    Job_Name = digits
    job_state = Q
    comment = Not Running: Insufficient amount of resource: ngpus (R: 4 A: 0 T:
\t 16)
    estimated.start_time = Sun Nov 22 23:00:00 2026
"""


def client(folder: Path, name: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "said").write_text(says)
    tool(folder / name, f"cat {folder}/said")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "7|PENDING|Resources|2026-11-22T23:00:00\n8_0|PENDING|(null)|N/A\n8_1|PENDING|ReqNodeNotAvail, May be reserved|N/A\n"
    client(tmp_path, "squeue", rows, monkeypatch)
    assert query_queue("slurm", ["7", "8_0", "8_1"]).waits == {
        "7": PendingJob("Resources", "2026-11-22T23:00:00"),
        "8_0": PendingJob(),
        "8_1": PendingJob("ReqNodeNotAvail, May be reserved"),
    }


def test_qstat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client(tmp_path, "qstat", QSTAT, monkeypatch)
    why = "Not Running: Insufficient amount of resource: ngpus (R: 4 A: 0 T: 16)"
    assert query_queue("pbs", ["7.server"]).waits == {"7.server": PendingJob(why, "Sun Nov 22 23:00:00 2026")}
