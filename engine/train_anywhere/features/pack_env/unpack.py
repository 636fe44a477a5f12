"""Unpack environment and code of a job onto a node's own disk, unless they are there.

python -m train_anywhere.features.pack_env.unpack ENVIRONMENT.tar CODE.tar    # target folders: TRAIN_PACKED, TRAIN_PACKED_CODE

One process per node runs this, with the shared Python. If it fails, it prints why, and the ranks of this node use the shared files.
"""

import json
import os
import socket
import sys
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train_anywhere.features.pack_env.archive import FACTS, SETTINGS
from train_anywhere.files.node_disk import provide


def main(arguments: list[str]) -> int:
    """Unpack both archives. Return 1 if this node has to use the shared environment, else 0."""
    environment, code = map(Path, arguments)
    start, node = time.monotonic(), socket.gethostname()
    try:
        folder, made = unpack_environment(environment, Path(os.environ["TRAIN_PACKED"]))
        unpack_code(code, Path(os.environ["TRAIN_PACKED_CODE"]))
    except (OSError, tarfile.TarError, ValueError) as error:
        why = str(error)
        if isinstance(error, OSError) and error.strerror:
            why = f"{error.strerror}: {error.filename}"
        message = f"the packed environment can't be unpacked ({why}); this node uses the shared one."
        print(f"{node}: {message}", file=sys.stderr)
        return 1
    what = f"unpacked in {time.monotonic() - start:.0f} s to" if made else "found in"
    print(f"{node}: environment {what} {folder}", flush=True)
    return 0


def unpack_environment(archive: Path, folder: Path) -> tuple[Path, bool]:
    """Return the unpacked environment, and whether it is new."""
    facts = json.loads((archive.parent / FACTS).read_text())

    def fill(into: Path) -> None:
        _extract(archive, into)
        connect(into, facts)

    return provide(folder.parents[1], folder.name, fill, facts["size"], facts["files"])


def unpack_code(archive: Path, folder: Path) -> None:
    """Unpack the job's code. Raises OSError, tarfile.TarError."""
    size = archive.stat().st_size
    provide(folder.parents[1], folder.name, lambda into: _extract(archive, into), size, size // 2000)


def connect(folder: Path, facts: Mapping[str, Any]) -> None:
    """Create the links and settings by which Python finds an unpacked environment."""
    python, venv = facts["python"], folder / "venv"
    final = folder.with_name(folder.name.removeprefix("."))  # its name once it is complete
    interpreter = f"../../base/bin/{python}" if facts["base"] else facts["interpreter"]
    (venv / "bin").mkdir(exist_ok=True)
    for name, target in ((python, interpreter), ("python3", python), ("python", python)):
        (venv / "bin" / name).symlink_to(target)
    if facts["base"]:
        lines = (venv / SETTINGS).read_text().splitlines()
        kept = [line for line in lines if line.partition("=")[0].strip() != "home"]
        (venv / SETTINGS).write_text("\n".join([f"home = {final}/base/bin", *kept]) + "\n")


def _extract(archive: Path, into: Path) -> None:
    with tarfile.open(archive, "r:") as tar:
        tar.extractall(into, filter="tar")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
