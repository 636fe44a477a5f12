"""A sweep on this machine: all members are checked first, then each runs in a process of its own, one after the other.

A process per member, because frameworks keep global state: seeds, devices, graphs, the first framework's threads.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from src.config.members import load_members, refuse_unlike
from src.config.schema import Config
from src.distributed.layout import local_layout
from src.files import ROOT
from src.files.output import protect
from src.launch.leaving import rank_environment
from src.launch.local import local_problems, make_run, resolved_numbers
from src.launch.processes import beside, recorded
from src.runs.folder import RunDir


@dataclass(frozen=True)
class Ended:
    """A member that has run.

    Attributes:
        code: its exit code.
    """

    run: RunDir
    config: Config
    code: int


def run_all(trees: Sequence[Mapping[str, Any]], overrides: Sequence[Sequence[str]]) -> list[Ended]:
    """Run each member; a failure does not stop the next.

    Returns:
        One for each member; none of a dry run.

    Raises:
        ConfigError: the problems of all members, before anything is written.
    """
    refuse_unlike(trees, submitted=False)
    members = load_members(trees, overrides, local_problems)
    layouts = [local_layout(m.config) for m in members]
    if members[0].config.dry_run:
        numbers = [resolved_numbers(m.config, layout) for m, layout in zip(members, layouts, strict=True)]
        print("\n\n".join(f"{' '.join(o)}\n{n}" for o, n in zip(overrides, numbers, strict=True)))
        return []
    protect()
    ended = []
    for number, (member, layout) in enumerate(zip(members, layouts, strict=True), 1):
        print(f"\n[{number}/{len(members)}] {' '.join(member.overrides)}", flush=True)
        run = make_run(member.config, member.overrides, layout)
        with beside(run, member.config):
            ended.append(Ended(run, member.config, _run_one(str(run.path))))
    failed = [" ".join(o) for o, one in zip(overrides, ended, strict=True) if one.code]
    if failed:
        print(f"\n{len(failed)} of {len(ended)} members failed: {'; '.join(failed)}", file=sys.stderr)
    return ended


def _run_one(run: str) -> int:
    """Train in a run folder in a child process."""
    command = [sys.executable, "-u", str(ROOT / "src" / "train.py"), "--run", run]
    code = subprocess.run(command, env=rank_environment()).returncode
    return recorded(RunDir(Path(run)), 128 - code if code < 0 else code)
