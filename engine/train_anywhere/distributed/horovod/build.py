"""Build Horovod for the frameworks of this environment, once, and install it: `make horovod`.

The wheel is kept in $HOROVOD_WHEEL_CACHE (default ~/.cache/horovod-wheels) under the versions that it was
built for and a digest of our corrections, so the next environment with the same ones gets it at once. Gloo is always in it, MPI where
mpicxx is found, NCCL where nvcc, nccl.h and frameworks built for CUDA are found.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from train_anywhere.distributed.horovod.corrections import BuildError, correct, digest
from train_anywhere.distributed.horovod.installation import (
    HOROVOD_VERSION,
    METADATA_KEY,
    horovod_version,
    installed_frameworks,
    installed_horovod,
)
from train_anywhere.errors import REFUSED

# setuptools: setup.py needs what left it in 81, horovodrun needs its distutils from Python 3.12 on.
REQUIREMENTS = ("setuptools<81", "wheel", "packaging", "cffi", "cloudpickle", "psutil", "pyyaml")
FRAMEWORKS_OF_HOROVOD = ("PYTORCH", "TENSORFLOW", "MXNET")  # in the names of the variables of its setup.py
COMPILERS = {"g++": "g++ 9 or later", "cmake": "CMake 3.13 or later", "make": "make"}
# Where a framework notes whether it was built for CUDA: file in its package, pattern.
CUDA_NOTES = {
    "torch": ("version.py", r"^cuda\b.*= '"),
    "tensorflow": ("python/platform/build_info.py", r"'is_cuda_build', True"),
}


@dataclass(frozen=True)
class Plan:
    """What to build: framework versions; MPI's name and NCCL's folder, "" to build without."""

    frameworks: Mapping[str, str]
    mpi: str = ""
    nccl_home: str = ""

    @property
    def version(self) -> str:
        """Versions of all that is in it, as `horovod_version` writes them: names the wheel."""
        flavours = [flavour for flavour in (self.mpi, "nccl" if self.nccl_home else "") if flavour]
        return horovod_version(dict(self.frameworks), (*flavours, f"corrected{digest()}"))

    def environment(self) -> dict[str, str]:
        """Variables that tell Horovod's setup.py what to build."""
        wanted = {METADATA_KEY[name].upper() for name in self.frameworks}
        gpu = {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_HOME": self.nccl_home}
        return {
            "HOROVOD_LOCAL_VERSION": self.version.partition("+")[2],
            **{f"HOROVOD_{'WITH' if f in wanted else 'WITHOUT'}_{f}": "1" for f in FRAMEWORKS_OF_HOROVOD},
            "HOROVOD_WITH_GLOO": "1",
            "HOROVOD_WITH_MPI" if self.mpi else "HOROVOD_WITHOUT_MPI": "1",
            "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # CMake 4 refuses Horovod's own minimum
            "MAKEFLAGS": f"-j{compilers()}",
            **(gpu if self.nccl_home else {}),
        }


def compilers() -> int:
    """How many compilers may run at once, each with about 1.2 GB of memory: CMake's own variable, else all CPUs, at most 8."""
    return int(os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or min(len(os.sched_getaffinity(0)), 8))


def make_plan() -> Plan:
    """Look at this environment; BuildError when neither framework is installed."""
    frameworks = installed_frameworks()
    if not frameworks:
        raise BuildError("No framework is installed in this environment: run `make setup` first.")
    cuda = all(has_cuda(name) for name in frameworks)
    return Plan(frameworks, mpi=find_mpi(), nccl_home=find_nccl(os.environ) if cuda else "")


def find_mpi() -> str:
    """`openmpi4.1.4`, or `mpi` for another MPI, or "" without the compiler wrapper mpicxx."""
    if not shutil.which("mpicxx"):
        return ""
    shown = subprocess.run(["mpicxx", "--showme:version"], check=False, capture_output=True, text=True)
    found = re.search(r"Open MPI (\d+(?:\.\d+)*)", shown.stdout + shown.stderr)
    return f"openmpi{found[1]}" if found else "mpi"


def find_nccl(environ: Mapping[str, str]) -> str:
    """Folder that has include/nccl.h, or "" (also when the CUDA compiler nvcc is not on PATH)."""
    if not shutil.which("nvcc", path=environ.get("PATH", "")):
        return ""
    named = [environ.get(name, "") for name in ("HOROVOD_NCCL_HOME", "NCCL_HOME", "EBROOTNCCL", "CUDA_HOME")]
    homes = [home for home in [*named, "/usr/local/cuda", "/usr"] if home]
    return next((home for home in homes if Path(home, "include/nccl.h").is_file()), "")


def has_cuda(framework: str) -> bool:
    """Whether the installed framework was built for CUDA, read from its files without importing it."""
    spec = util.find_spec(framework)
    if spec is None or spec.origin is None:
        return False
    file, pattern = CUDA_NOTES[framework]
    note = Path(spec.origin).parent / file
    return note.is_file() and re.search(pattern, note.read_text(), re.MULTILINE) is not None


def check_compilers() -> None:
    """BuildError that names every missing tool at once."""
    missing = [what for tool, what in COMPILERS.items() if not shutil.which(tool)]
    if missing:
        raise BuildError(
            f"Building Horovod needs {', '.join(missing)}: `apt-get install g++ cmake make`, or on a cluster "
            "`module load gcc cmake`, or `conda install gxx_linux-64 cmake make`."
        )


def pip(log: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
    """Run pip of this Python: its output goes to `log`, the compiler's progress also to the terminal."""
    command = [sys.executable, "-m", "pip", *arguments]
    environ = {**os.environ, **(env or {})}
    process = subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    shown = 0
    with log.open("a") as file, process:
        for line in process.stdout or ():
            file.write(line)
            percent = re.match(r"\s*\[ *(\d+)%\]", line)
            if percent and int(percent[1]) >= shown + 10:
                shown = int(percent[1])
                say(f"  {shown} %")
    if process.returncode:
        raise BuildError(explain_failure(log, arguments[0]))


def explain_failure(log: Path, step: str) -> str:
    """The first error in the log (the last lines where none is marked), and what usually helps."""
    lines = log.read_text().splitlines()
    marked = (i for i, line in enumerate(lines) if re.search(r"\berror: |CMake Error|^ *ERROR:", line))
    start = next(marked, len(lines) - 15)
    help_for = {
        "download": "Without internet: copy the archive from pypi.org here and give it with --sdist FILE.",
        "wheel": "Usual causes: g++ older than 9; less than 1.2 GB of memory per compiler "
        "(set CMAKE_BUILD_PARALLEL_LEVEL=1); an MPI whose module was changed since.",
    }
    shown = [f"  {line[:200]}" for line in lines[max(start, 0) :][:15]]
    return "\n".join([f"`pip {step}` failed:", *shown, f"The whole log: {log}", help_for.get(step, "")])


def say(text: str) -> None:
    """One line of progress."""
    print(f"[horovod] {text}", flush=True)


def build(plan: Plan, cache: Path, log: Path, sdist: Path | None) -> Path:
    """Compile the wheel into `cache` and return its path; 3.5 minutes with 2 cores for both frameworks."""
    check_compilers()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="build-", dir=cache) as folder:
        sources = unpack(sdist or download(Path(folder), log), Path(folder))
        correct(sources)
        say(f"compiling {plan.version} (some minutes); log: {log}")
        # Without pip's own cache: it ignores the variables and would give back a wheel for other frameworks.
        options = ("-v", "--no-deps", "--no-build-isolation", "--no-cache-dir", "-w", folder)
        pip(log, "wheel", *options, str(sources), env=plan.environment())
        built = next(Path(folder).glob("horovod-*.whl"))
        wheel = built.replace(cache / built.name)
    say(f"built in {time.monotonic() - start:.0f} s: {wheel}")
    return wheel


def download(folder: Path, log: Path) -> Path:
    """Fetch the source archive from the package index into `folder`."""
    say(f"downloading the sources of Horovod {HOROVOD_VERSION}")
    options = ("--no-binary", ":all:", "--no-deps", "--no-build-isolation", "-d", str(folder))
    pip(log, "download", *options, f"horovod=={HOROVOD_VERSION}")
    return next(folder.glob("horovod-*.tar.gz"))


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack the archive; returns the folder of the sources."""
    if not sdist.is_file():
        raise BuildError(
            f"{sdist} does not exist: --sdist takes horovod-{HOROVOD_VERSION}.tar.gz of pypi.org."
        )
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"horovod-{HOROVOD_VERSION}"


def wheel_cache() -> Path:
    """Folder of the wheels."""
    return Path(os.environ.get("HOROVOD_WHEEL_CACHE") or "~/.cache/horovod-wheels").expanduser()


def cached_wheel(version: str, cache: Path) -> Path | None:
    """The wheel of this version for this Python and machine, if it was built before."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return next(cache.glob(f"horovod-{version}-{tag}-{tag}-*_{os.uname().machine}.whl"), None)


def make_horovod(cache: Path, sdist: Path | None = None, wheel_only: bool = False) -> None:
    """Build if needed, and install into the environment of this Python unless `wheel_only`."""
    plan = make_plan()
    if installed_horovod() == plan.version and not wheel_only:
        say(f"{plan.version} is installed already")
        return
    cache.mkdir(parents=True, exist_ok=True)
    log = cache / f"build-{plan.version}.log"
    log.write_text("")
    pip(log, "install", *REQUIREMENTS)
    wheel = cached_wheel(plan.version, cache) or build(plan, cache, log, sdist)
    if not wheel_only:
        pip(log, "install", "--force-reinstall", "--no-deps", str(wheel))
    say(f"{wheel} is built" if wheel_only else f"{plan.version} is installed")


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--sdist", type=Path, help=f"horovod-{HOROVOD_VERSION}.tar.gz, if there is no internet"
    )
    parser.add_argument("--wheel-only", action="store_true", help="fill the cache, install nothing")
    options = parser.parse_args(argv)
    try:
        make_horovod(wheel_cache(), options.sdist, options.wheel_only)
    except BuildError as error:
        print(error, file=sys.stderr)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
