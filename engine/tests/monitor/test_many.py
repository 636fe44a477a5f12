"""Pages, tables and lists of many nodes, GPUs, ranks, metrics and members."""

import csv
import io
import json
import os
import re
import resource
import subprocess
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from tools.testing.processes import run_python
from train_anywhere.files import ROOT
from train_anywhere.monitor.run_facts import AttemptSums
from train_anywhere.runs.lock import identity

ID = "20260101-000000-aaaa"

SECONDS = {"start": 5.0, "step": 900.0, "data": 10.0}

DAY = 8_640
"""Samples of a node in a day."""


def command(results: Path, script: str, *words: str, code: int = 0) -> tuple[str, float]:
    """Return the output of a command, and the CPU seconds that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = ("-m", "train_anywhere", script) if script == "report" else (f"src/{script}",)
    done = run_python(*start, *words, "--results", str(results))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == code, done.stderr
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def make_run(
    results: Path, nodes: int = 1, gpus: int = 0, metrics: int = 1, samples: int = 30, idle: bool = False
) -> Path:
    """Write the folder of a running training as its monitors and rank 0 do."""
    run = results / "digits" / ID
    (run / "monitor").mkdir(parents=True)
    (results / "latest").symlink_to(run)
    hosts = [f"node{number}" for number in range(nodes)]
    attempt = {
        "started": "2026-01-01T00:00:00+00:00",
        "hosts": hosts,
        "seconds": SECONDS,
        "devices": nodes * gpus,
    }
    info = {"state": "running", "hosts": hosts, "world_size": 4 * nodes, "attempts": [attempt], "step": 100}
    (run / "run.json").write_text(json.dumps({"format": 2, **info}))
    (run / "config.yaml").write_text("cluster: {scheduler: none}\n")
    (run / "overrides.txt").write_text("seed=1\n")
    (run / "lock").write_text(json.dumps(identity({})))
    names = [f"val{number}/loss{number}" for number in range(metrics)]
    lines = [f"{step},{step}" + f",{1 / step}" * metrics for step in range(1, 21)]
    (run / "metrics.csv").write_text("\n".join([",".join(["step", "epoch", *names]), *lines, ""]))
    each = ("use_percent", "memory_used_gib", "power_w", "temperature_c")
    columns = ["cpu_use_percent", "job_memory_gib", *(f"gpu{g}_{name}" for g in range(gpus) for name in each)]
    rows = [dict.fromkeys(columns, 1 if idle else 50 + at % 7) for at in range(samples)]
    rows = [{"time": 1e9 + 10 * at, **row} for at, row in enumerate(rows)]
    text = io.StringIO()
    table = csv.DictWriter(text, [*rows[0]], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    sums = {name: AttemptSums(1e9, 1e9, float(rows[0][name])) for name in columns}
    for row in rows:
        for name, one in sums.items():
            one.add(row["time"], row[name])
    known: dict[str, Any] = {
        "every_seconds": 10,
        "cpus": 64,
        "sample": rows[-1],
        "sums": {n: astuple(one) for n, one in sums.items()},
    }
    known["gpus"] = [{"index": g, "name": "A100", "memory_gib": 80} for g in range(gpus)]
    for number, host in enumerate(hosts):
        (run / "monitor" / f"{host}.csv").write_text(text.getvalue())
        (run / "monitor" / f"{host}.json").write_text(json.dumps({"host": host, **known}))
        ranks = [{"rank": 4 * number + rank} for rank in range(4)]
        (run / "monitor" / f"ranks-{host}.json").write_text(json.dumps({"host": host, "ranks": ranks}))
    return run


def make_sweep(results: Path, members: int, metrics: int = 2) -> Path:
    """Write the folders of a finished sweep, and return that of the sweep."""
    base = results / "digits" / ID
    base.mkdir(parents=True)
    (base / "job.sbatch").touch()
    names = [f"val/loss{number}" for number in range(metrics)]
    for number in range(members):
        run = base.with_name(f"{ID}-{number}")
        run.mkdir()
        (run / "config.yaml").write_text("cluster: {scheduler: slurm}\n")
        (run / "overrides.txt").write_text(f"seed={number}\n")
        values = dict.fromkeys(names, number / 8)
        info = {"state": "completed", "step": 20, "metrics": values, "monitor": names[0], "mode": "min"}
        (run / "run.json").write_text(json.dumps({"format": 2, **info}))
        lines = [f"{step},{step}" + f",{number + 1 / step}" * metrics for step in (1, 2, 3)]
        (run / "metrics.csv").write_text("\n".join([",".join(["step", "epoch", *names]), *lines, ""]))
    return base


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 7), (1, 8), (1, 9), (9, 4), (31, 8), (1, 1000), (1000, 8)])
def test_many_nodes_and_gpus(tmp_path: Path, nodes: int, gpus: int) -> None:
    run = make_run(tmp_path, nodes, gpus)
    command(tmp_path, "report")
    text = (run / "report.html").read_text()
    assert text.count("<svg") == 3 and "None" not in text and len(text) < 4_000_000
    assert text.count('<td class="n">') == 4 * nodes * gpus  # each GPU has a row
    shown = re.findall(r"<h3>GPU use in %(.*?)</h3>", text)
    assert shown == [f" (the first 100 of {nodes * gpus:,})" if nodes * gpus > 100 else ""]
    curves = min(100, nodes * gpus) + (min(100, nodes) if nodes > 1 else 0)
    assert text.count("</i>node") == curves
    page, _ = command(tmp_path, "jobs.py", "status")
    assert "\nnode0:" in page and len(page.splitlines()) < 50
    assert ("more (--json)" in page) == (nodes > 32)
    shown = json.loads(command(tmp_path, "jobs.py", "status", "--json")[0])["runs"][0]
    assert len(shown["nodes"]) == nodes and "sums" not in shown["nodes"]["node0"]


def test_a_thousand_idle_gpus_are_a_few_sentences(tmp_path: Path) -> None:
    run = make_run(tmp_path, 31, 4, idle=True)
    page, _ = command(tmp_path, "jobs.py", "status")
    assert page.count("was idle") == 5 and "119 more like the last one." in page
    assert page.count("was idle") == command(tmp_path, "report")[0].count("was idle")
    assert (run / "report.html").read_text().count("was idle") == 5


@pytest.mark.new_process  # measures CPU seconds of processes
def test_status_does_not_grow_with_samples_and_hardly_with_nodes(tmp_path: Path) -> None:
    make_run(tmp_path / "few", 10, 4)
    make_run(tmp_path / "many", 1000, 4, samples=DAY)
    # in turns: other work on this machine makes both slower
    found = [[command(tmp_path / name, "jobs.py", "status") for name in ("few", "many")] for _ in range(5)]
    (small, few), (large, many) = (min(each, key=lambda one: one[1]) for each in zip(*found, strict=True))
    assert "node0:" in small and "node0:" in large
    assert many < 2 * few


@pytest.mark.parametrize("metrics", [7, 31, 1000])
def test_many_metrics(tmp_path: Path, metrics: int) -> None:
    run = make_run(tmp_path, metrics=metrics)
    command(tmp_path, "report")
    text = (run / "report.html").read_text()
    assert text.count("<svg") == min(metrics + 1, 100)  # also the CPUs
    assert "use of the job&#39;s CPUs in %</h3>" in text
    assert ("901 more without a figure" in text) == (metrics == 1000)
    assert all(f"loss{number}" in text for number in range(metrics))
    assert len(text) < 2_000_000


def test_validation_sets_share_a_figure(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    names = [f"val_loss/dataloader_idx_{number}" for number in range(31)]
    lines = [f"{step},{step}" + f",{1 / step}" * 31 for step in range(1, 21)]
    (run / "metrics.csv").write_text("\n".join([",".join(["step", "epoch", *names]), *lines, ""]))
    command(tmp_path, "report")
    text = (run / "report.html").read_text()
    assert text.count("<svg") == 2 and text.count("</i>dataloader_idx_") == 31


@pytest.mark.parametrize("members", [7, 31, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_members(tmp_path: Path, members: int) -> None:
    base = make_sweep(tmp_path, members)
    command(tmp_path, "report", ID)
    text = (base / "report.html").read_text()
    assert text.count("<svg") == 2 and "over seed</h3>" not in text  # seeds are averaged
    assert text.count("</i>") == 2 * min(members, 100) and text.count("<details") == 2
    assert text.count("<tr") == members + 1
    assert len(command(tmp_path, "jobs.py", "list", "--all")[0].splitlines()) == members + 1
    assert len(command(tmp_path, "jobs.py", "status", ID)[0].splitlines()) >= members + 1
    best = command(tmp_path, "jobs.py", "best", ID, "--metric", "val/loss0", "--mode", "min")[0]
    assert best.startswith("val/loss0 0.333333")


def test_a_sweep_with_many_metrics(tmp_path: Path) -> None:
    base = make_sweep(tmp_path, 7, 1000)
    command(tmp_path, "report", ID)
    text = (base / "report.html").read_text()
    assert text.count("<svg") == 100 and "900 more without a figure" in text


SWEEP = (
    "model=mlp", "trainer.max_epochs=2", "trainer.accelerator=cpu", "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1", "trainer.limit_test_batches=1",
)  # fmt: skip


def local_sweep(folder: Path, seeds: str, spoil: str = "") -> subprocess.CompletedProcess[str]:
    """Run a sweep here. `spoil` is Python code that runs at the command's start."""
    (folder / "sitecustomize.py").write_text(spoil)
    words = ("-m", f"seed={seeds}", *SWEEP, f"paths.results={folder / 'results'}")
    environ = {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}", "NO_COLOR": "1"}
    return run_python(str(ROOT / "src" / "train.py"), *words, env=environ, timeout=600)


SPOILER = """
import sys
if sys.argv[-1:] and any("train.py" in word for word in sys.orig_argv) and "-m" in sys.orig_argv:
    import pygal
    def fail(*_, **__): raise TypeError("no colour")
    pygal.XY.render = fail
"""


@pytest.mark.new_process
def test_a_page_that_fails_does_not_change_the_exit_code(tmp_path: Path) -> None:
    done = local_sweep(tmp_path, "1,2", SPOILER)
    assert done.returncode == 0, done.stderr
    assert "The report was not written: no colour" in done.stdout and "seed=2" in done.stdout
