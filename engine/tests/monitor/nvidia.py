"""A stand-in for nvidia-smi on machines without a GPU: it prints what the driver's own prints for `--format=csv,noheader,nounits`.

The rows are as in the manual (`nvidia-smi --help-query-gpu`): one GPU a line, values separated by ", ", [N/A] for what it has not.
"""

from pathlib import Path

ROWS = """\
0, GPU-4f6ba1f1-7d14-1a3c-8a55-d1d0e1c3a000, NVIDIA A100-SXM4-80GB, 81920, 87, 61234, 301.25, 54
1, GPU-4f6ba1f1-7d14-1a3c-8a55-d1d0e1c3a001, NVIDIA A100-SXM4-80GB, 81920, 0, 4, 62.90, 31
2, GPU-4f6ba1f1-7d14-1a3c-8a55-d1d0e1c3a002, NVIDIA A100-SXM4-80GB, 81920, [N/A], 4096, [Unknown Error], 33
3, GPU-4f6ba1f1-7d14-1a3c-8a55-d1d0e1c3a003, NVIDIA A100-SXM4-80GB, 81920, 12, 4096, 70.00, 35
"""


def fake_nvidia_smi(folder: Path, then: str = "") -> Path:
    """Write the program; returns its folder, for PATH.

    Args:
        then: lines of shell that it runs first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{then}\ncat <<'END'\n{ROWS}END\n")
    program.chmod(0o755)
    return folder
