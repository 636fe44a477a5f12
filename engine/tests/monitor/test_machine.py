"""Measurements of this machine, and the share of its memory that is the job's."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tools.testing.processes import run_python
from train_anywhere.distributed.layout import usable_cpus
from train_anywhere.features.sampler import GIB, Machine, job_cgroup

RANK = "import sys, time; block = bytearray(300 << 20); sys.stdout.write('ready\\n'); sys.stdout.flush(); time.sleep(600)"


def test_a_busy_cpu_is_seen() -> None:
    machine = Machine("nobody")
    assert machine.sample()["cpu_use_percent"] is None
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass
    sample = machine.sample()
    assert 100 / (2 * len(machine.cpus)) < (sample["cpu_use_percent"] or 0) <= 100
    assert (sample["memory_used_gib"] or 0) > 0.1


def test_the_first_sample_of_another_thread_has_no_cpu_use() -> None:
    """psutil would return 0 there, with which each curve of a node would begin."""
    machine, found = Machine("nobody"), []
    time.sleep(0.6)
    thread = threading.Thread(target=lambda: found.extend(machine.sample() for _ in "x"))
    thread.start()
    thread.join()
    assert found[0]["cpu_use_percent"] is None


def test_the_cpus_are_those_of_the_affinity() -> None:
    code = "import os; os.sched_setaffinity(0, {1}); from train_anywhere.distributed import layout; print(layout.usable_cpus())"
    done = run_python("-c", code, check=True)
    assert (os.cpu_count() == 1) or done.stdout == "[1]\n"
    assert usable_cpus() == sorted(os.sched_getaffinity(0))


def test_the_memory_of_ranks_and_of_their_children(tmp_path: Path) -> None:
    """Two processes of 300 MiB, a rank and its worker, count. One of another run does not."""
    script = tmp_path / "src" / "train.py"
    script.parent.mkdir()
    script.write_text(
        f"import subprocess, sys\nif '--child' in sys.argv:\n    subprocess.Popen([sys.executable, '-c', {RANK!r}])\n{RANK}\n"
    )
    commands = [["--run", "/a/run", "--child"], ["--run", "/another/run"]]
    started = [subprocess.Popen([sys.executable, str(script), *c], stdout=subprocess.PIPE) for c in commands]
    try:
        for process, times in zip(started, (2, 1), strict=True):
            assert process.stdout
            for _ in range(times):
                assert process.stdout.readline() == b"ready\n"
        held = Machine("/a/run").sample()["job_memory_gib"]
        assert held == pytest.approx(0.6, abs=0.05)
    finally:
        subprocess.run(["pkill", "-P", str(started[0].pid)])
        for process in started:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    "line, folder, stat, resident",
    [
        ("0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0", "system.slice/slurmstepd.scope/job_42",
         "anon 2147483648\nfile 999999999999\nshmem 1073741824\n", 3.0),
        ("9:memory:/slurm/uid_7/job_42/step_0/task_0\n1:cpuset:/slurm/uid_7/job_42", "memory/slurm/uid_7/job_42",
         "rss 5\ntotal_rss 1073741824\ntotal_cache 99999999999\n", 1.0),
    ],
)  # fmt: skip
def test_a_job_s_cgroup_says_its_memory(tmp_path, line, folder, stat, resident):
    """Files as Slurm's two cgroup plugins lay them out, which the testbed does not use."""
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(line + "\n")
    (cgroups / folder).mkdir(parents=True)
    (cgroups / folder / "memory.stat").write_text(stat)
    limit = "memory.limit_in_bytes" if folder.startswith("memory") else "memory.max"
    (cgroups / folder / limit).write_text(f"{GIB}\n")
    machine = Machine("/a/run", cgroups, proc)
    assert machine.sample()["job_memory_gib"] == resident
    assert machine.facts()["memory_limit_gib"] == 1.0


def test_no_cgroup_outside_of_a_job(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/user.slice/user-1000.slice\n")
    assert job_cgroup(tmp_path, tmp_path) is None
    machine = Machine("/a/run", tmp_path, tmp_path / "nowhere")
    assert machine.sample()["job_memory_gib"] == 0
    assert machine.facts()["memory_limit_gib"] is None
