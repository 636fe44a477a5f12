"""Measure a submission: time from the command to sbatch, and file calls; this project compared with peers.

    python engine/benchmarks/submit.py [--rounds 15]

All programs take turns on the same machine and call an `sbatch` that answers at once, so the ratios count. The peers,
hydra-submitit-launcher and submitit, are installed with pip into a separate environment. This project runs in one with the
requirements of a submission (Hydra, Jinja), because Hydra imports every plugin that it finds. Shared disks of clusters
answer file calls slowly, so these are counted too (strace). The last line is a JSON object.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:1] = [str(ROOT), str(ROOT / "engine")]

from benchmarks.rounds import take_turns  # noqa: E402

REQUIRED = ("hydra-core", "omegaconf", "Jinja2")
"""Packages that a submission imports; the versions are those of requirements/common.txt."""
CHECKED = ("torch", "lightning")
"""A submission checks that its framework is installed, but does not import it: empty packages replace gigabytes."""

SBATCH = '#!/bin/sh\ndate +%s.%N >>"$CALLED"\necho Submitted batch job 1234\n'
OUR_SBATCH = '#!/bin/sh\ndate +%s.%N >>"$CALLED"\necho 1234\n'

SUBMITIT = """
import submitit
executor = submitit.SlurmExecutor(folder="{folder}/submitit")
executor.update_parameters(nodes=2, ntasks_per_node=2, time=60)
executor.submit(print, "hello")
"""
HYDRA_APP = """
import hydra
@hydra.main(version_base="1.3", config_path=None, config_name="config")
def main(config): print(config)
main()
"""
HYDRA_CONFIG = """
defaults:
  - override hydra/launcher: submitit_slurm
  - _self_
lr: 0.1
hydra: {mode: MULTIRUN, sweep: {dir: sweep}, launcher: {nodes: 2, tasks_per_node: 2, timeout_min: 60}}
"""


def main() -> None:
    """Run the rounds, and print a table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="submit-benchmark-", dir="/var/tmp") as folder:
        commands = install_programs(Path(folder))
        found = take_turns(
            commands, rounds, lambda name: seconds_to_sbatch(name, commands[name], Path(folder)), unused=1
        )
        calls = {name: file_calls(command, Path(folder)) for name, command in commands.items()}
    print(f"{'':26}{'to sbatch, ratio':>24}{'file calls':>12}")
    for name in commands:
        print(f"{name:26}{found.ratio(name, 'hydra-submitit-launcher')!s:>24}{calls[name]:>12}")
    if found.disturbed:
        print(found.describe_disturbed())
    ratios = {
        f"time_to_{name}": round(found.ratio("ours", name).median, 3) for name in commands if name != "ours"
    }
    files = {
        f"file_calls_to_{n}": round(calls["ours"] / calls[n], 3) for n in commands if n != "ours" and calls[n]
    }
    print(json.dumps({**ratios, **files, "file_calls": calls["ours"]}))


def install_programs(folder: Path) -> dict[str, list[str]]:
    """Install the peers, and write their programs; return the command of each program."""
    lines = (ROOT / "requirements" / "common.txt").read_text().splitlines()
    pins = [line.split()[0] for line in lines if line.startswith(REQUIRED)]
    extras = tomllib.loads((ROOT / "engine/pyproject.toml").read_text())["project"]["optional-dependencies"]
    python = install(folder / "venv", [*pins, *extras["bench"]])
    our_python = install(folder / "ours", pins)
    [packages] = (folder / "ours" / "lib").glob("python*/site-packages")
    for name in CHECKED:
        (packages / name).mkdir()
        (packages / name / "__init__.py").touch()
    for name, script in {"bin": SBATCH, "our_bin": OUR_SBATCH}.items():
        (folder / name).mkdir()
        (folder / name / "sbatch").write_text(script)
        (folder / name / "sbatch").chmod(0o755)
    (folder / "peer.py").write_text(SUBMITIT.format(folder=folder))
    (folder / "app").mkdir()
    (folder / "app" / "app.py").write_text(HYDRA_APP.replace("config_path=None", "config_path='.'"))
    (folder / "app" / "config.yaml").write_text(HYDRA_CONFIG)
    project = ["cluster=slurm", "trainer.nodes=2", "trainer.devices=2", f"paths.results={folder}/results"]
    return {
        "python -c pass + sbatch": [python, "-c", "import os; os.execvp('sbatch', ['sbatch'])"],
        "ours": [our_python, str(ROOT / "src" / "train.py"), *project],
        "submitit": [python, str(folder / "peer.py")],
        "hydra-submitit-launcher": [python, str(folder / "app" / "app.py")],
    }


def install(venv: Path, pins: list[str]) -> str:
    """Create an environment with these packages, and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    python = str(venv / "bin" / "python")
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, *pins], check=True)
    return python


def environment(name: str, folder: Path) -> dict[str, str]:
    """Return the environment of a program: it has the matching sbatch, and Python writes compiled files, like pip for the peers."""
    fake = folder / ("our_bin" if name == "ours" else "bin")
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {
        **inherited,
        "PATH": f"{fake}:{os.environ['PATH']}",
        "CALLED": str(folder / "called"),
        "USER": "me",
    }


def seconds_to_sbatch(name: str, command: list[str], folder: Path) -> float:
    """Return the seconds from the start of a command to its call of sbatch."""
    (folder / "called").unlink(missing_ok=True)
    started = time.time()
    # hydra-submitit-launcher keeps waiting for its job after the measured part
    process = start(command, environment(name, folder), folder)
    seconds = wait_for_sbatch(folder / "called", process) - started
    stop(process)
    return seconds


def start(command: list[str], environ: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a command without output in a new process group."""
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        command, env=environ, cwd=folder, stdout=quiet, stderr=quiet, start_new_session=True
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Wait a moment for the process to exit, then kill its group: a peer waits for its job."""
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for_sbatch(called: Path, process: subprocess.Popen[bytes]) -> float:
    """Return the time that the fake sbatch wrote to its file."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if called.exists() and called.read_text().strip():
            return float(called.read_text().split()[0])
        if process.poll() not in (None, 0):
            break
        time.sleep(0.001)
    raise SystemExit(f"{process.args!r} did not call sbatch (exit code {process.poll()})")


def file_calls(command: list[str], folder: Path) -> int:
    """Return the number of system calls that name a file, with those of children, until sbatch is called; 0 without strace."""
    if not shutil.which("strace"):
        return 0
    name = "ours" if str(ROOT) in " ".join(command) else "peer"
    (folder / "called").unlink(missing_ok=True)
    trace = ["strace", "-f", "-qq", "-e", "trace=%file", "-o", str(folder / "trace")]
    process = start([*trace, *command], environment(name, folder), folder)
    wait_for_sbatch(folder / "called", process)
    stop(process)
    lines = (folder / "trace").read_text().splitlines()
    called = (i for i, line in enumerate(lines) if re.search(r'execve\("[^"]*/sbatch".* = 0', line))
    # fstat does not name a file, and an interrupted call has a second line
    uncounted = re.compile(r'AT_EMPTY_PATH|"", *<unfinished|resumed>')
    return sum(not uncounted.search(line) for line in lines[: next(called, len(lines))])


if __name__ == "__main__":
    main()
