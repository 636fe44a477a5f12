"""Write requirements/locks: every package that `make setup` installs, with version and checksums: `make lock`.

One lock stands beside each list of requirements, and all are parts of one solution, so that any of them go together. A package that
requirements/common.txt or dev.txt needs already is in their locks alone. Needs `uv`, or gets it for the moment; what is locked stays as
it is unless a list asks for something else, or `--upgrade` is given.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from shutil import which

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "requirements"
LOCKS = LISTS / "locks"
FIRST = ("common", "dev")
"""Lists that are installed whatever else is; later ones leave out what these have."""

ALONE = ("docs",)
"""Lists that are installed into an environment of their own."""

HEAD = "# Written by `make lock` from {names}; not to be edited.\n# of: {digest}\n"

Blocks = dict[str, str]
"""A package's name to its lines in a lock: versions, conditions, checksums."""


def main(arguments: list[str]) -> int:
    """Solve and write; returns the exit code of what failed, or 0."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            uv = which("uv") or get_uv(Path(folder))
            write(uv, Path(folder), arguments)
        except subprocess.CalledProcessError as error:
            print(
                f"error: no solution, or the package index can't be reached: {error.stderr}", file=sys.stderr
            )
            return 1
    return 0


def get_uv(folder: Path) -> str:
    """A uv that lives as long as the folder does."""
    venv.create(folder / "uv", with_pip=True)
    pip = [str(folder / "uv/bin/python"), "-m", "pip", "install", "-q", "uv"]
    subprocess.run(pip, check=True, capture_output=True, text=True)
    return str(folder / "uv/bin/uv")


def write(uv: str, folder: Path, flags: list[str]) -> None:
    """One solution for all lists, then the part of each."""
    lists = ordered()
    whole = folder / "all.txt"
    before = "".join(path.read_text() for path in LOCKS.glob("*.txt"))
    whole.write_text(re.sub(r"\+cpu ; sys_platform == 'linux'", "", before))
    solve(uv, lists, whole, *flags)
    known: set[str] = set()
    for path in lists:
        solve(uv, [path], folder / path.name, "-c", str(whole))
        blocks = parts((folder / path.name).read_text())
        kept = {name: block for name, block in blocks.items() if name not in known or path.stem in ALONE}
        if path.stem in FIRST:
            known |= blocks.keys()
        for lock, names in variants(path, kept).items():
            lock.write_text(head(path) + "".join(names[name] for name in sorted(names)))
            print(lock.relative_to(ROOT), len(names))


def ordered() -> list[Path]:
    """The lists of requirements, those first that all others build on."""
    return sorted(LISTS.glob("*.txt"), key=lambda path: (path.stem not in FIRST, path.stem))


def solve(uv: str, lists: list[Path], out: Path, *flags: str) -> None:
    """Find versions for these lists, for any system and any Python that the project supports."""
    command = [uv, "pip", "compile", "-q", "--universal", "--python-version", "3.11", "--generate-hashes"]
    command += ["--no-annotate", "--no-header", *flags, "-o", str(out), *map(str, lists)]
    subprocess.run(command, check=True, capture_output=True, text=True)


def parts(text: str) -> Blocks:
    """The packages of a lock; one has several parts where its version depends on Python's."""
    found: Blocks = {}
    for block in re.findall(r"^[\w.-]+(?:\[[\w,-]+\])?==.*\n(?:    .*\n)*", text, re.MULTILINE):
        name = re.split(r"[\[=]", block)[0]
        found[name] = found.get(name, "") + block
    return found


def variants(path: Path, blocks: Blocks) -> dict[Path, Blocks]:
    """The locks of one list: two for one whose packages bring CUDA, of which the CPU's leaves that out."""
    if "torch" in blocks:
        cpu = {name: block for name, block in blocks.items() if not CUDA.match(name)}
        cpu["torch"] = torch_for_cpu(blocks["torch"])
        return {LOCKS / f"{path.stem}-cpu.txt": cpu, LOCKS / f"{path.stem}-gpu.txt": blocks}
    return {LOCKS / path.name: blocks}


CUDA = re.compile(r"nvidia-(?!ml-py)|cuda-|triton$")
"""What torch needs on a GPU alone."""

CPU_WHEELS = LISTS / "lightning-cpu.sha256"
"""Checksums of torch's builds without CUDA for Linux: PyPI has those with CUDA only."""


def torch_for_cpu(block: str) -> str:
    """The lines of torch without CUDA: on Linux the build of PyTorch's own index, elsewhere PyPI's, which has no CUDA anyway.

    Raises:
        SystemExit: the checksums are those of another version.
    """
    version = re.split(r"[=; \\]+", block)[1]
    wheels = re.findall(
        rf"^(\w{{64}})  torch-{re.escape(version)}\+cpu-", CPU_WHEELS.read_text(), re.MULTILINE
    )
    if not wheels:
        raise SystemExit(
            f"error: {CPU_WHEELS.relative_to(ROOT)} is not of torch {version}: its first lines say how to renew it."
        )
    hashes = " \\\n".join(f"    --hash=sha256:{wheel}" for wheel in sorted(wheels))
    elsewhere = block.replace(f"=={version}", f"=={version} ; sys_platform != 'linux'", 1)
    return f"torch=={version}+cpu ; sys_platform == 'linux' \\\n{hashes}\n{elsewhere}"


def head(path: Path) -> str:
    """The first lines of a lock, by which `make setup` sees whether it is of this list."""
    return HEAD.format(names=path.relative_to(ROOT), digest=digest(path))


def digest(path: Path) -> str:
    """Of what a list asks for; comments and blank lines don't count."""
    lines = [line.split("#")[0].strip() for line in path.read_text().splitlines()]
    return hashlib.sha256("\n".join(line for line in lines if line).encode()).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
