"""A sweep on this machine: all members are checked first, then each runs in a process of its own, one after the other.

A process per member, because frameworks keep global state: seeds, devices, graphs, the first framework's threads.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from slurm.launch import load_all
from slurm.sweep import refuse_unlike
from src.config.paths import absolute
from src.files import ROOT
from src.files.output import protect
from src.launch.local import freeze, identity, local_problems, resolved_numbers
from src.runs.folder import create


def run_all(trees: Sequence[Mapping[str, Any]], overrides: Sequence[Sequence[str]]) -> int:
    """Run each member; a failure does not stop the next.

    Returns:
        0, or the exit code of the first member that failed.

    Raises:
        ConfigError: the problems of all members, before anything is written.
    """
    refuse_unlike(trees, submitted=False)
    configs = load_all(trees, overrides, local_problems)
    if configs[0].dry_run:
        print(
            "\n\n".join(
                f"{' '.join(o)}\n{resolved_numbers(c)}" for c, o in zip(configs, overrides, strict=True)
            )
        )
        return 0
    protect()
    codes = []
    for number, (config, tree, typed) in enumerate(zip(configs, trees, overrides, strict=True), 1):
        print(f"\n[{number}/{len(trees)}] {' '.join(typed)}", flush=True)
        run = create(absolute(config.paths.results), config.name)
        freeze(run, tree, typed)
        run.update(**identity(config), state="queued")
        codes.append(_run_one(str(run.path)))
    failed = [" ".join(o) for o, code in zip(overrides, codes, strict=True) if code]
    if failed:
        print(f"\n{len(failed)} of {len(codes)} members failed: {'; '.join(failed)}", file=sys.stderr)
    return next((code for code in codes if code), 0)


def _run_one(run: str) -> int:
    """Train in a run folder in a child process."""
    command = [sys.executable, "-u", str(ROOT / "src" / "train.py"), "--run", run]
    code = subprocess.run(command).returncode
    return 128 - code if code < 0 else code
