"""Build Horovod for the frameworks of this environment and install it: `make horovod`.

The wheel is stored in $HOROVOD_WHEEL_CACHE (default ~/.cache/horovod-wheels) under the framework versions and a digest of our
corrections, so that the next environment with the same versions only installs it. It always supports Gloo, MPI if mpicxx is
found, and NCCL if nvcc, nccl.h and frameworks built for CUDA are found.

The corrections make Horovod 0.28.1 compile with current frameworks, and fix two of its bugs.
Tested with the pinned frameworks (CPU) on Python 3.11 with g++ 12, CMake 3.25 and Open MPI 4.1.4.
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
from hashlib import sha256
from importlib import util
from pathlib import Path

from train_anywhere.distributed.packages import METADATA_KEY, installed_frameworks, installed_horovod
from train_anywhere.errors import REFUSED, ProjectError

HOROVOD_VERSION = "0.28.1"  # the last release (2023)

_SHORT = {"torch": "torch", "tensorflow": "tf"}


def horovod_version(frameworks: dict[str, str], flavours: tuple[str, ...] = ()) -> str:
    """Return the version of the build for frameworks and flavours (`openmpi4.1.4`, `nccl`).

    The part after `+` follows the rules for local versions (packaging.python.org, version specifiers): lower case, separated by dots,
    numbers without leading zeros; `2.6.0a0+nv25.01` becomes `2.6.0a0.nv25.1`.
    """
    parts = [_SHORT[name] + frameworks[name] for name in _SHORT if name in frameworks]
    segments = re.split(r"[^a-z0-9]+", ".".join([*parts, *flavours]).lower())
    return HOROVOD_VERSION + "+" + ".".join(str(int(s)) if s.isdigit() else s for s in segments)


class BuildError(ProjectError):
    """Horovod could not be built: the message gives the reason and what to install."""


@dataclass(frozen=True)
class Correction:
    """A replacement of the string `old` by `new` in one file of the sources, and the reason."""

    path: str
    old: str
    new: str
    why: str


CORRECTIONS = (
    *(
        Correction(
            path,
            "set(CMAKE_CXX_STANDARD 14)",
            "set(CMAKE_CXX_STANDARD 17)",
            "torch >= 2.1 has C++17 in its headers",
        )
        for path in ("CMakeLists.txt", "horovod/torch/CMakeLists.txt")
    ),
    Correction(
        "horovod/tensorflow/xla_mpi_ops.cc",
        "\n#if TENSORFLOW_VERSION >= 2006000000\n",
        "\n#if 0\n",
        "the XLA operations (GPU only, off by default) include headers that TensorFlow no longer ships",
    ),
    Correction(
        "horovod/common/gloo/gloo_controller.cc",
        "global_ranks_.reserve(size_)",
        "global_ranks_.resize(size_)",
        "with Gloo the list of ranks stayed empty, so the stall inspector never named a missing rank",
    ),
    Correction(
        "horovod/common/gloo/gloo_context.cc",
        "  assert(global_context.IsEnabled());\n",
        "  assert(global_context.IsEnabled());\n  gloo_iface_ = global_context.gloo_iface_;\n",
        "HOROVOD_GLOO_IFACE was not used after the first connections, so Horovod aborts on a node that can't "
        "resolve its own name",
    ),
    Correction(
        "horovod/tensorflow/mpi_ops.cc",
        "\nGpuStreamHandle AsGpuStreamValue(Stream* stream);\n",
        "\ntemplate <class S> inline GpuStreamHandle AsGpuStreamValue(S* s) {\n"
        "  return static_cast<GpuStreamHandle>(s->platform_specific_handle().stream);\n}\n",
        "GPU builds only: TensorFlow 2.21 removed AsGpuStreamValue",
    ),
)


def digest() -> str:
    """Return 8 hex digits of the corrections: wheels with other ones are not reused."""
    strings = [string for c in CORRECTIONS for string in (c.path, c.old, c.new)]
    return sha256("\0".join(strings).encode()).hexdigest()[:8]


def apply_corrections(sources: Path, corrections: tuple[Correction, ...] = CORRECTIONS) -> None:
    """Apply the corrections to the sources. Raises BuildError unless each matches once."""
    for c in corrections:
        file = sources / c.path
        text = file.read_text() if file.is_file() else ""
        if text.count(c.old) != 1:
            raise BuildError(
                f"A correction of Horovod's sources ({c.why}) matches {text.count(c.old)} times in {c.path} "
                "instead of once: the archive is another version, or was changed already."
            )
        file.write_text(text.replace(c.old, c.new))


# setup.py needs a part of setuptools that version 81 removed; horovodrun needs its distutils from Python 3.12 on
REQUIREMENTS = ("setuptools<81", "wheel", "packaging", "cffi", "cloudpickle", "psutil", "pyyaml")
FRAMEWORKS_OF_HOROVOD = ("PYTORCH", "TENSORFLOW", "MXNET")  # as in the variables that its setup.py reads
COMPILERS = {"g++": "g++ 9 or later", "cmake": "CMake 3.13 or later", "make": "make"}
# a file in each framework's package, and the pattern that matches if it was built for CUDA
CUDA_NOTES = {
    "torch": ("version.py", r"^cuda\b.*= '"),
    "tensorflow": ("python/platform/build_info.py", r"'is_cuda_build', True"),
}


@dataclass(frozen=True)
class Plan:
    """The build: framework versions, name of MPI, folder of NCCL ("" to build without)."""

    frameworks: Mapping[str, str]
    mpi: str = ""
    nccl_home: str = ""

    @property
    def version(self) -> str:
        """The version of the wheel, which lists the versions of all parts, see `horovod_version`."""
        flavours = [flavour for flavour in (self.mpi, "nccl" if self.nccl_home else "") if flavour]
        return horovod_version(dict(self.frameworks), (*flavours, f"corrected{digest()}"))

    def environment(self) -> dict[str, str]:
        """Return the variables from which Horovod's setup.py reads what to build."""
        included = {METADATA_KEY[name].upper() for name in self.frameworks}
        gpu = {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_HOME": self.nccl_home}
        return {
            "HOROVOD_LOCAL_VERSION": self.version.partition("+")[2],
            **{f"HOROVOD_{'WITH' if f in included else 'WITHOUT'}_{f}": "1" for f in FRAMEWORKS_OF_HOROVOD},
            "HOROVOD_WITH_GLOO": "1",
            "HOROVOD_WITH_MPI" if self.mpi else "HOROVOD_WITHOUT_MPI": "1",
            "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # CMake 4 refuses Horovod's own minimum
            # each compiler needs 1.2 GB of memory
            "MAKEFLAGS": f"-j{os.environ.get('CMAKE_BUILD_PARALLEL_LEVEL') or min(len(os.sched_getaffinity(0)), 8)}",
            **(gpu if self.nccl_home else {}),
        }


def make_plan() -> Plan:
    """Return the build for this environment. Raises BuildError without a framework."""
    frameworks = installed_frameworks()
    if not frameworks:
        raise BuildError("No framework is installed in this environment: run `make setup` first.")
    cuda = all(has_cuda(name) for name in frameworks)
    return Plan(frameworks, mpi=find_mpi(), nccl_home=find_nccl(os.environ) if cuda else "")


def find_mpi() -> str:
    """Return `openmpi4.1.4`, or `mpi` for another MPI, or "" without mpicxx."""
    if not shutil.which("mpicxx"):
        return ""
    shown = subprocess.run(["mpicxx", "--showme:version"], check=False, capture_output=True, text=True)
    found = re.search(r"Open MPI (\d+(?:\.\d+)*)", shown.stdout + shown.stderr)
    return f"openmpi{found[1]}" if found else "mpi"


def find_nccl(environ: Mapping[str, str]) -> str:
    """Return the folder that has include/nccl.h, or "" without it or without nvcc on PATH."""
    if not shutil.which("nvcc", path=environ.get("PATH", "")):
        return ""
    named = [environ.get(name, "") for name in ("HOROVOD_NCCL_HOME", "NCCL_HOME", "EBROOTNCCL", "CUDA_HOME")]
    homes = [home for home in [*named, "/usr/local/cuda", "/usr"] if home]
    return next((home for home in homes if Path(home, "include/nccl.h").is_file()), "")


def has_cuda(framework: str) -> bool:
    """Return whether the installed framework was built for CUDA, without importing it."""
    spec = util.find_spec(framework)
    if spec is None or spec.origin is None:
        return False
    file, pattern = CUDA_NOTES[framework]
    note = Path(spec.origin).parent / file
    return note.is_file() and re.search(pattern, note.read_text(), re.MULTILINE) is not None


def check_compilers() -> None:
    """Raise BuildError with all missing tools."""
    missing = [what for tool, what in COMPILERS.items() if not shutil.which(tool)]
    if missing:
        raise BuildError(
            f"Building Horovod needs {', '.join(missing)}: `apt-get install g++ cmake make`, or on a cluster "
            "`module load gcc cmake`, or `conda install gxx_linux-64 cmake make`."
        )


def pip(log: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
    """Run this Python's pip with its output in `log`, and print the compiler's progress."""
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
                report(f"  {shown} %")
    if process.returncode:
        raise BuildError(explain_failure(log, arguments[0]))


def explain_failure(log: Path, step: str) -> str:
    """Return the first error in the log, else its last lines, and what usually helps."""
    lines = log.read_text().splitlines()
    marked = (i for i, line in enumerate(lines) if re.search(r"\berror: |CMake Error|^ *ERROR:", line))
    start = next(marked, len(lines) - 15)
    help_for = {
        "download": "Without internet: copy the archive from pypi.org here and pass it with --sdist FILE.",
        "wheel": "Usual causes: g++ older than 9; less than 1.2 GB of memory per compiler "
        "(set CMAKE_BUILD_PARALLEL_LEVEL=1); a loaded MPI module that has changed.",
    }
    shown = [f"  {line[:200]}" for line in lines[max(start, 0) :][:15]]
    return "\n".join([f"`pip {step}` failed:", *shown, f"Full log: {log}", help_for.get(step, "")])


def report(text: str) -> None:
    """Print one line of progress."""
    print(f"[horovod] {text}", flush=True)


def build(plan: Plan, cache: Path, log: Path, sdist: Path | None) -> Path:
    """Compile the wheel into `cache` and return its path. It takes minutes."""
    check_compilers()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="build-", dir=cache) as folder:
        sources = unpack(sdist or download(Path(folder), log), Path(folder))
        apply_corrections(sources)
        report(f"compiling {plan.version} (some minutes); log: {log}")
        # not from pip's own cache: it ignores the variables and may return a wheel for other frameworks
        options = ("-v", "--no-deps", "--no-build-isolation", "--no-cache-dir", "-w", folder)
        pip(log, "wheel", *options, str(sources), env=plan.environment())
        built = next(Path(folder).glob("horovod-*.whl"))
        wheel = built.replace(cache / built.name)
    report(f"built in {time.monotonic() - start:.0f} s: {wheel}")
    return wheel


def download(folder: Path, log: Path) -> Path:
    """Fetch the source archive from the package index into `folder`."""
    report(f"downloading the sources of Horovod {HOROVOD_VERSION}")
    options = ("--no-binary", ":all:", "--no-deps", "--no-build-isolation", "-d", str(folder))
    pip(log, "download", *options, f"horovod=={HOROVOD_VERSION}")
    return next(folder.glob("horovod-*.tar.gz"))


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack the archive, and return the folder of the sources."""
    if not sdist.is_file():
        raise BuildError(
            f"{sdist} does not exist: --sdist takes horovod-{HOROVOD_VERSION}.tar.gz from pypi.org."
        )
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"horovod-{HOROVOD_VERSION}"


def wheel_cache() -> Path:
    """Return the folder of the wheels."""
    return Path(os.environ.get("HOROVOD_WHEEL_CACHE") or "~/.cache/horovod-wheels").expanduser()


def find_cached_wheel(version: str, cache: Path) -> Path | None:
    """Return the wheel of this version for this Python and machine, None if not built."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return next(cache.glob(f"horovod-{version}-{tag}-{tag}-*_{os.uname().machine}.whl"), None)


def make_horovod(cache: Path, sdist: Path | None = None, wheel_only: bool = False) -> None:
    """Build Horovod if necessary, and install it here unless `wheel_only`."""
    plan = make_plan()
    if installed_horovod() == plan.version and not wheel_only:
        report(f"{plan.version} is installed already")
        return
    cache.mkdir(parents=True, exist_ok=True)
    log = cache / f"build-{plan.version}.log"
    log.write_text("")
    pip(log, "install", *REQUIREMENTS)
    wheel = find_cached_wheel(plan.version, cache) or build(plan, cache, log, sdist)
    if not wheel_only:
        pip(log, "install", "--force-reinstall", "--no-deps", str(wheel))
    report(f"{wheel} is built" if wheel_only else f"{plan.version} is installed")


def main(argv: list[str] | None = None) -> int:
    """Run the command line, and return the exit code."""
    whole = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip(), formatter_class=whole)
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
