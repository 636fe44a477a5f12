"""Build the pyxis stand-in for the testbed's containers, and make image folders for it (see pyxis_standin.c)."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from train_anywhere.slurm.testbed.testbed_errors import TestbedError

SOURCE = Path(__file__).parent / "pyxis_standin.c"
HEADER = Path("/usr/include/slurm/spank.h")
PACKAGES = "gcc libc6-dev libslurm-dev"
SYSTEM_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Folders of / that are links into /usr on current distributions."""


def can_build() -> bool:
    """Return whether this machine can compile the stand-in."""
    return shutil.which("gcc") is not None and HEADER.exists()


def build_plugin(target: Path) -> None:
    """Compile the stand-in.

    Raises:
        TestbedError: it does not compile, with the compiler's message.
    """
    words = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(target), str(SOURCE)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise TestbedError(f"the container stand-in does not compile:\n{done.stderr}")


def make_image(
    folder: Path, borrow: Sequence[Path] = (), environment: Mapping[str, str] | None = None
) -> Path:
    """Make an image folder that mounts this machine's programs, so that no image has to be downloaded.

    Args:
        folder: created by this call; every node must see it.
        borrow: folders of this machine to mount at the same path, besides `/usr`, such as a Python.
        environment: variables that the image sets, such as `PATH`.

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
