"""make gpu-check: try the project on this machine's GPU with a Python that has a framework, and print one table.

    python -m benchmarks.gpu            with a GPU, some minutes
    python -m benchmarks.gpu --cpu      without one: the same steps with everything small, which says nothing about speed

Nothing is installed: what is missing is named, and what needs it is left out. The last line is the name of a JSON file with the
results; those of a whole check on a GPU are in `results/`, and docs/reference/gpus.md shows them.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu import page

SIDES = sorted(folder.parent.name for folder in Path(__file__).parent.glob("*/__init__.py"))
NEEDED = {
    "hydra": "hydra-core",
    "omegaconf": "omegaconf",
    "psutil": "psutil",
    "rich": "rich",
    "tensorboard": "tensorboard",
    "numpy": "numpy",
}
"""What both frameworks need, and the distribution that has it; requirements/common.txt has the versions."""

TOGETHER = ("resume", "ranks", "kill")
"""Parts that are not timed run side by side."""


def main() -> int:
    """0: all is right; 1: something is not; 2: it can't be tried."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpu", action="store_true", help="without a GPU: everything small")
    parser.add_argument("--only", nargs="+", metavar="PART", help="these alone: FRAMEWORK.resume, ...")
    parser.add_argument(
        "--log",
        type=Path,
        help="what the parts print beside their rows; default: a file in the temporary folder",
    )
    parser.add_argument(
        "--to", type=Path, help="JSON file; default: in results/, and below /tmp with --cpu or --only"
    )
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        return part(asked.part[0], Path(asked.part[1]), gpu=not asked.cpu)
    if missing := [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]:
        sys.exit(
            f"error: {sys.executable} lacks {', '.join(missing)}: pip install -r requirements/common.txt."
        )
    if not asked.cpu and not chips():
        sys.exit(
            "error: nvidia-smi shows no GPU here; make gpu-check ARGS=--cpu tries the same steps without one."
        )
    return everything(asked)


def everything(asked: argparse.Namespace) -> int:
    """Run the parts, print their rows as they come and all of them at the end."""
    began = time.monotonic()
    about = {
        "chip": "none (--cpu)" if asked.cpu else chips()[0],
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        log = asked.log or Path(tempfile.gettempdir()) / "gpu-check.log"
        with log.open("w") as out:
            for names in batches(asked.only, about, rows):
                rows += run(names, Path(folder), out, asked.cpu)
    wrong = sum(row["good"] is False for row in rows)
    print(
        f"\n{', '.join(f'{k} {v}' for k, v in about.items())}; {time.monotonic() - began:.0f} s; log: {log}"
    )
    for row in rows:
        print(line(row))
    found = {**about, "wrong": wrong, "rows": {row["name"]: row["found"] for row in rows}}
    whole = not (asked.cpu or asked.only)
    name = f"{re.sub(r'[^a-z0-9]+', '-', about['chip'].lower()).strip('-')}-{about['date']}.json"
    to = asked.to or (page.RESULTS if whole else Path(tempfile.gettempdir())) / name
    to.write_text(json.dumps(found, indent=2) + "\n")
    if whole and page.PAGE.parent.is_dir():
        page.PAGE.write_text(page.make_page())
    print(to)
    return int(wrong > 0)


def batches(only: list[str] | None, about: dict[str, str], rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    """The parts, those that run side by side together. A framework that is missing gets a row, else its version is noted."""
    for side in SIDES:
        if importlib.util.find_spec(f"benchmarks.gpu.{side}") is None:
            continue
        known = importlib.import_module(f"benchmarks.gpu.{side}")
        if missing := [name for name in known.NEEDED if importlib.util.find_spec(name) is None]:
            rows.append(
                {"name": side, "good": None, "found": f"left out: {', '.join(missing)} not installed"}
            )
            print(line(rows[-1]), flush=True)
            continue
        distributions = importlib.metadata.packages_distributions()  # a package may come under several names
        about |= {name: importlib.metadata.version(distributions[name][0]) for name in known.NEEDED}
        names = [f"{side}.{name}" for name in known.PARTS if not only or f"{side}.{name}" in only]
        together = [name for name in names if name.split(".")[1] in TOGETHER]
        yield from [together] if together else []
        yield from ([name] for name in names if name not in together)


def run(names: list[str], folder: Path, log: Any, cpu: bool) -> list[dict[str, Any]]:
    """Parts in processes of their own, side by side; returns their rows. One that takes too long is ended, and gets a row."""
    print(f"{' + '.join(names)} ...", flush=True)
    processes = {}
    for name in names:
        (folder / name).mkdir()
        words = [
            sys.executable,
            "-m",
            "benchmarks.gpu",
            "--part",
            name,
            str(folder / name),
            *(["--cpu"] if cpu else []),
        ]
        processes[name] = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=log, text=True, cwd=page.ROOT, start_new_session=True
        )
    found = []
    began = time.monotonic()
    for name, process in processes.items():
        side, short = name.split(".")
        limit: float = importlib.import_module(f"benchmarks.gpu.{side}").PARTS[short]
        try:
            text, _ = process.communicate(timeout=max(1.0, limit - (time.monotonic() - began)))
            ended = f"ended with exit code {process.returncode}" if process.returncode else None
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text, _ = process.communicate()
            ended = f"was not done after {limit:.0f} s"
        rows = [json.loads(row) for row in text.splitlines()]
        rows += [{"name": name, "good": False, "found": ended}] if ended else []
        for row in rows:
            print(line(row), flush=True)
        found += rows
    return found


def part(name: str, folder: Path, gpu: bool) -> int:
    """Print the rows of one part to standard output, and everything else to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from benchmarks.gpu.row import Place

    for row in importlib.import_module(f"benchmarks.gpu.{name}").rows(Place(folder, gpu)):
        out.write(json.dumps(row.__dict__) + "\n")
        out.flush()
    return 0


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    mark = {True: "ok", False: "WRONG", None: ""}[row["good"]]
    return f"  {mark:<6}{row['name']:<60}  {row['found']}"


def chips() -> list[str]:
    """Names of the GPUs, as the driver has them."""
    try:
        words = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


if __name__ == "__main__":
    sys.exit(main())
