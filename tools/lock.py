"""Write requirements/locks: every package that `make setup` installs, with version and checksums: `make lock`.

Each list of requirements has a lock, and all locks are parts of one solution, so that any of them can be installed together. A package
that requirements/common.txt or dev.txt needs is only in their locks. Uses `uv`, or installs it into a temporary folder. Locked versions
stay unless a list requires others, or `--upgrade` is given.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from shutil import which

ROOT = Path(os.environ.get("TEMPLATE_PROJECT") or Path(__file__).resolve().parents[1])
LISTS = ROOT / "requirements"
LOCKS = LISTS / "locks"
FIRST = ("common", "dev")
"""Lists that are always installed; the locks of the others leave out their packages."""

EXTRA = {"finetune": "lightning"}
"""Lists that users install in addition to another one; their locks leave out its packages."""

OWN_WHEEL = "engine"
"""The list of a project's own wheel, which no package index has."""

SEPARATE = ("docs",)
"""Lists that are installed into a separate environment."""

HEAD = "# Written by `make lock` from {names}; not to be edited.\n# of: {digest}\n"

Blocks = dict[str, str]
"""The lines of each package in a lock, by its name: versions, conditions, checksums."""


def main(arguments: list[str]) -> int:
    """Solve and write the locks; return the exit code."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            uv = which("uv") or install_uv(Path(folder))
            write_locks(uv, Path(folder), arguments)
        except subprocess.CalledProcessError as error:
            print(
                f"error: uv found no solution, or can't reach the package index: {error.stderr}",
                file=sys.stderr,
            )
            return 1
    return 0


def install_uv(folder: Path) -> str:
    """Install uv into the folder and return its path."""
    venv.create(folder / "uv", with_pip=True)
    pip = [str(folder / "uv/bin/python"), "-m", "pip", "install", "-q", "uv"]
    subprocess.run(pip, check=True, capture_output=True, text=True)
    return str(folder / "uv/bin/uv")


def write_locks(uv: str, folder: Path, flags: list[str]) -> None:
    """Solve all lists together, then write the lock of each."""
    lists = sorted_lists()
    whole = folder / "all.txt"
    before = "".join(path.read_text() for path in LOCKS.glob("*.txt"))
    whole.write_text(re.sub(r"\+cpu ; sys_platform == 'linux'", "", before))
    solve(uv, lists, whole, *flags)
    known: set[str] = set()
    packages: dict[str, set[str]] = {}
    for path in lists:
        solve(uv, [path], folder / path.name, "-c", str(whole))
        blocks = parse_blocks((folder / path.name).read_text())
        packages[path.stem] = {*blocks}
        left_out = set() if path.stem in SEPARATE else known | packages.get(EXTRA.get(path.stem, ""), set())
        kept = {name: block for name, block in blocks.items() if name not in left_out}
        if path.stem in FIRST:
            known |= blocks.keys()
        for lock, names in lock_contents(path, kept).items():
            lock.write_text(header(path) + "".join(names[name] for name in sorted(names)))
            print(lock.relative_to(ROOT), len(names))


def sorted_lists() -> list[Path]:
    """Return the lists of requirements, those that are always installed first, those in addition to others last."""
    lists = [path for path in LISTS.glob("*.txt") if path.stem != OWN_WHEEL]
    return sorted(lists, key=lambda path: (path.stem not in FIRST, path.stem in EXTRA, path.stem))


def solve(uv: str, lists: list[Path], out: Path, *flags: str) -> None:
    """Find versions for these lists, for every system and Python version that the project supports."""
    command = [uv, "pip", "compile", "-q", "--universal", "--python-version", "3.11", "--generate-hashes"]
    command += ["--no-annotate", "--no-header", *flags, "-o", str(out), *map(str, lists)]
    subprocess.run(command, check=True, capture_output=True, text=True)


def parse_blocks(text: str) -> Blocks:
    """Return the packages of a lock; lines of one whose version depends on Python's are joined."""
    found: Blocks = {}
    for block in re.findall(r"^[\w.-]+(?:\[[\w,-]+\])?==.*\n(?:    .*\n)*", text, re.MULTILINE):
        name = re.split(r"[\[=]", block)[0]
        found[name] = found.get(name, "") + block
    return found


def lock_contents(path: Path, blocks: Blocks) -> dict[Path, Blocks]:
    """Return the locks of a list: one, or two if it has torch, for CPUs (without CUDA) and for GPUs."""
    if "torch" in blocks:
        cpu = {name: block for name, block in blocks.items() if not CUDA.match(name)}
        cpu["torch"] = torch_for_cpu(blocks["torch"])
        return {LOCKS / f"{path.stem}-cpu.txt": cpu, LOCKS / f"{path.stem}-gpu.txt": blocks}
    return {LOCKS / path.name: blocks}


CUDA = re.compile(r"nvidia-(?!ml-py)|cuda-|triton$")
"""Packages that torch needs only on GPUs."""

CPU_WHEELS = LISTS / "lightning-cpu.sha256"
"""Checksums of torch's builds without CUDA for Linux, which PyPI does not have."""


def torch_for_cpu(block: str) -> str:
    """Return the lines of torch without CUDA: on Linux the build from PyTorch's index, elsewhere PyPI's, which has no CUDA.

    Raises:
        SystemExit: the checksums are of another version.
    """
    version = re.split(r"[=; \\]+", block)[1]
    wheels = re.findall(
        rf"^(\w{{64}})  torch-{re.escape(version)}\+cpu-", CPU_WHEELS.read_text(), re.MULTILINE
    )
    if not wheels:
        raise SystemExit(
            f"error: {CPU_WHEELS.relative_to(ROOT)} has no checksums of torch {version}: its first lines explain how to renew it."
        )
    hashes = " \\\n".join(f"    --hash=sha256:{wheel}" for wheel in sorted(wheels))
    elsewhere = block.replace(f"=={version}", f"=={version} ; sys_platform != 'linux'", 1)
    return f"torch=={version}+cpu ; sys_platform == 'linux' \\\n{hashes}\n{elsewhere}"


def header(path: Path) -> str:
    """Return the first lines of a lock, from which `make setup` knows whether its list has changed."""
    return HEAD.format(names=path.relative_to(ROOT), digest=digest(path))


def digest(path: Path) -> str:
    """Return a digest of a list's requirements, without comments and blank lines."""
    lines = [line.split("#")[0].strip() for line in path.read_text().splitlines()]
    return hashlib.sha256("\n".join(line for line in lines if line).encode()).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
