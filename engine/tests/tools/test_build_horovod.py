"""The build script: detection, messages about missing tools, and one real build."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import build_horovod as build
from tools.build_horovod import (
    CORRECTIONS,
    BuildError,
    Plan,
    apply_corrections,
    digest,
    explain_failure,
    find_cached_wheel,
    find_mpi,
    find_nccl,
    has_cuda,
    make_plan,
    wheel_cache,
)
from train_anywhere.distributed.packages import horovod_problem, installed_horovod

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = [sys.executable, str(ROOT / "tools/build_horovod.py")]


@pytest.fixture
def sources(tmp_path):
    """A tree that holds just the places that are to be corrected."""
    for c in CORRECTIONS:
        (tmp_path / c.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / c.path).write_text(f"// before\n{c.old}\n// after\n")
    return tmp_path


def test_every_correction_is_made(sources):
    apply_corrections(sources)
    for c in CORRECTIONS:
        assert c.new in (sources / c.path).read_text()


@pytest.mark.parametrize("c", CORRECTIONS, ids=lambda c: c.path)
@pytest.mark.parametrize("found", [0, 2])
def test_correction_that_does_not_fit_once_is_an_error(sources, c, found):
    (sources / c.path).write_text(f"//\n{c.old}\n//\n" * found)
    with pytest.raises(BuildError, match=f"matches {found} times in {c.path}"):
        apply_corrections(sources)


def test_plan_tells_setup_py_what_to_build(monkeypatch):
    """The number of compilers is not from MAKEFLAGS: `make horovod` sets it for its own ends."""
    monkeypatch.setenv("MAKEFLAGS", "--no-print-directory")
    monkeypatch.setenv("CMAKE_BUILD_PARALLEL_LEVEL", "3")
    env = Plan({"torch": "2.13.0+cpu"}, mpi="openmpi4.1.4").environment()
    assert env["HOROVOD_LOCAL_VERSION"] == f"torch2.13.0.cpu.openmpi4.1.4.corrected{digest()}"
    assert "HOROVOD_WITHOUT_TENSORFLOW" in env and "HOROVOD_WITH_MPI" in env
    assert "HOROVOD_GPU_OPERATIONS" not in env and env["MAKEFLAGS"] == "-j3"
    env = Plan({"tensorflow": "2.21.0"}, nccl_home="/opt/nccl").environment()
    assert "HOROVOD_WITHOUT_PYTORCH" in env and "HOROVOD_WITHOUT_MPI" in env
    assert env["HOROVOD_NCCL_HOME"] == "/opt/nccl"


def test_nccl_needs_the_header_and_the_compiler(tmp_path):
    (tmp_path / "include").mkdir()
    (tmp_path / "bin").mkdir()
    environ = {"NCCL_HOME": str(tmp_path), "PATH": str(tmp_path / "bin")}
    (tmp_path / "include/nccl.h").touch()
    assert find_nccl(environ) == ""
    (tmp_path / "bin/nvcc").touch(0o755)
    assert find_nccl(environ) == str(tmp_path)


@pytest.mark.parametrize(
    ("package", "file", "text", "expected"),
    [
        ("torch", "version.py", "cuda: Optional[str] = '13.0'\n", True),
        ("torch", "version.py", "cuda: Optional[str] = None\n", False),
        ("tensorflow", "python/platform/build_info.py", "[('cpu', 1), ('is_cuda_build', True)]", True),
        ("tensorflow", "python/platform/build_info.py", "[('is_cuda_build', False)]", False),
    ],
)
def test_cuda_is_read_from_the_framework_files(tmp_path, monkeypatch, package, file, text, expected):
    note = tmp_path / package / file
    note.parent.mkdir(parents=True)
    note.write_text(text)
    (tmp_path / package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert has_cuda(package) is expected


def test_mpi_is_asked_for_its_version(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    wrapper = tmp_path / "mpicxx"
    wrapper.write_text("#!/bin/sh\necho 'mpicxx: Open MPI 4.1.4 (Language: C++)' >&2\n")
    wrapper.chmod(0o755)
    assert find_mpi() == "openmpi4.1.4"
    wrapper.write_text("#!/bin/sh\necho 'unknown option'; exit 1\n")
    assert find_mpi() == "mpi"
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert find_mpi() == ""


def test_failure_shows_the_first_error_and_the_log(tmp_path):
    log = tmp_path / "build.log"
    noise = [f"[ {i}%] Building CXX object a{i}.o -Wno-error" for i in range(50)]
    log.write_text("\n".join([*noise, "x.cc:1:2: error: no such thing", "make: *** stopped", *noise[:20]]))
    text = explain_failure(log, "wheel")
    assert "error: no such thing" in text and "make: *** stopped" in text and str(log) in text
    assert "Building CXX object a49.o" not in text and "g++" in text


def test_missing_compilers_are_named_before_anything_is_done(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"g\+\+ 9 or later, CMake 3\.13 or later, make"):
        build.check_compilers()


def test_wheel_of_other_versions_or_corrections_is_not_taken(tmp_path, monkeypatch):
    """An edited correction needs a new build."""
    plan = Plan({"torch": "2.13.0+cpu"})
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    machine = os.uname().machine
    for version in (
        Plan({"torch": "2.12.0+cpu"}).version,
        Plan({"torch": "2.13.0+cpu"}, mpi="openmpi4.1.4").version,
    ):
        (tmp_path / f"horovod-{version}-{tag}-{tag}-linux_{machine}.whl").touch()
    (tmp_path / f"horovod-{plan.version}-cp27-cp27-linux_{machine}.whl").touch()
    assert find_cached_wheel(plan.version, tmp_path) is None
    wheel = tmp_path / f"horovod-{plan.version}-{tag}-{tag}-linux_{machine}.whl"
    wheel.touch()
    assert find_cached_wheel(plan.version, tmp_path) == wheel
    monkeypatch.setattr(build, "CORRECTIONS", CORRECTIONS[:-1])
    assert find_cached_wheel(Plan({"torch": "2.13.0+cpu"}).version, tmp_path) is None


@pytest.mark.horovod
def test_second_call_needs_neither_cache_nor_network(tmp_path, require):
    require(installed_horovod() == make_plan().version, "run `make horovod`")
    offline = {**os.environ, "HOROVOD_WHEEL_CACHE": str(tmp_path / "cache"), "PIP_NO_INDEX": "1"}
    run = subprocess.run(SCRIPT, env=offline, capture_output=True, text=True, check=True)
    assert "is installed already" in run.stdout
    assert not (tmp_path / "cache").exists()
    assert horovod_problem() is None


@pytest.mark.horovod
def test_cached_wheel_is_not_built_again(require):
    """`make test` builds it without the cache, in CI on a clean machine."""
    require(find_cached_wheel(make_plan().version, wheel_cache()), "run `make horovod`")
    run = subprocess.run([*SCRIPT, "--wheel-only"], capture_output=True, text=True, check=True)
    assert "is built" in run.stdout and "built in" not in run.stdout
