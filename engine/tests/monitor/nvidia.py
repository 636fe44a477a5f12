"""A stand-in for nvidia-smi with `--format=csv,noheader,nounits`.

The rows are as in the manual (`nvidia-smi --help-query-gpu`): one GPU a line, values separated by ", ", [N/A] for what it has not.
"""

import os
from pathlib import Path

ROWS = """\
0, GPU-4f6ba1f1-7d14-1a3c-8a55-d1d0e1c3a000, NVIDIA A100-SXM4-80GB, 81920, 87, 61234, 301.25, 54
1, GPU-4f6ba1f1-7d14-1a3c-8a55-d1d0e1c3a001, NVIDIA A100-SXM4-80GB, 81920, 0, 4, 62.90, 31
2, GPU-4f6ba1f1-7d14-1a3c-8a55-d1d0e1c3a002, NVIDIA A100-SXM4-80GB, 81920, [N/A], 4096, [Unknown Error], 33
3, GPU-4f6ba1f1-7d14-1a3c-8a55-d1d0e1c3a003, NVIDIA A100-SXM4-80GB, 81920, 12, 4096, 70.00, 35
"""


def fake_nvidia_smi(folder: Path, then: str = "", rows: str = ROWS) -> Path:
    """Write the program and return its folder, for PATH.

    Args:
        then: lines of shell that it runs first.
        rows: what it prints.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{then}\ncat <<'END'\n{rows}END\n")
    program.chmod(0o755)
    return folder


IDLE_ROWS = "".join(
    f"{i}, GPU-4f6ba1f1-7d14-1a3c-8a55-d1d0e1c3a00{i}, NVIDIA A100-SXM4-80GB, 81920, 0, 4096, 62.90, 31\n"
    for i in range(2)
)
"""Two GPUs that do nothing."""

HURRY = """
import builtins, sys
found = builtins.__import__

def importing(name, *arguments, **options):
    module = found(name, *arguments, **options)
    if name == "train_anywhere.features.idle.idle_gpus":
        builtins.__import__ = found
        vars(sys.modules[name]).update(WARN_MINUTES={warn}, EVERY_S=0.2)
    return module

if "train_anywhere.features.node" in sys.orig_argv:
    builtins.__import__ = importing
"""


def idle_gpus(folder: Path, warn: float) -> dict[str, str]:
    """Return the environment of a run on a stand-in's idle GPUs and a monitor that waits less."""
    fake_nvidia_smi(folder / "bin", rows=IDLE_ROWS)
    (folder / "sitecustomize.py").write_text(HURRY.format(warn=warn))
    return {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(folder)}
