"""Containers of the testbed: builds the pyxis stand-in and makes image folders for it (see pyxis_standin.c)."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from train_anywhere.slurm.testbed.testbed_errors import TestbedError

SOURCE = Path(__file__).parent / "pyxis_standin.c"
HEADER = Path("/usr/include/slurm/spank.h")
PACKAGES = "gcc libc6-dev libslurm-dev"
SYSTEM_LINKS = (
    "bin",
    "sbin",
    "lib",
    "lib32",
    "lib64",
    "libx32",
)  # they lead into /usr on current distributions


def can_build() -> bool:
    """Whether this machine has what the stand-in is compiled with."""
    return shutil.which("gcc") is not None and HEADER.exists()


def build_plugin(target: Path) -> None:
    """Compile the stand-in.

    Raises:
        TestbedError: the compiler refused, with what it said.
    """
    words = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(target), str(SOURCE)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise TestbedError(f"the container stand-in does not compile:\n{done.stderr}")


def make_image(
    folder: Path, borrow: Sequence[Path] = (), environment: Mapping[str, str] | None = None
) -> Path:
    """Make an image folder that borrows this machine's programs, so that no image has to be downloaded.

    Args:
        folder: made by this call; every node must see it.
        borrow: folders of this machine that the image shows at the same place, besides `/usr`, such as a Python.
        environment: variables that the image sets, as an image's `PATH` does.

    Returns:
        `folder`, for `--container-image`.
    """
    (folder / "etc").mkdir(parents=True)
    borrowed = [Path("/usr"), Path("/etc/alternatives"), *borrow]
    for name in SYSTEM_LINKS:
        original = Path("/") / name
        if original.is_symlink():
            (folder / name).symlink_to(original.readlink())
        elif original.exists():
            borrowed.append(original)
    lines = [f"{path} {path} none bind\n" for path in borrowed if path.exists()]
    (folder / "etc/fstab").write_text("".join(lines))
    variables = [f"{name}={value}\n" for name, value in (environment or {}).items()]
    (folder / "etc/environment").write_text("".join(variables))
    return folder
