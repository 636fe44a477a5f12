"""The checks of installed packages in environments made of metadata: Horovod, and the other framework."""

import json
import sys
from collections.abc import Callable

import pytest
from packaging.version import Version

from tools.build_horovod import HOROVOD_VERSION, horovod_version
from tools.testing.frameworks import FIRST
from train_anywhere.config.schema import Config
from train_anywhere.distributed import packages
from train_anywhere.distributed.packages import framework_problem, horovod_problem
from train_anywhere.launch.local_run import local_problems
from train_anywhere.testing.plugin import FRAMEWORKS
from train_anywhere.training.preflight import CHECKS

NAMES = [("torch", "torch", "pytorch"), ("tensorflow", "tf", "tensorflow")]
NAME, SHORT, KEY = NAMES[0]
"""Of a package: its name, in the version of a build, and in Horovod's own notes."""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """An import path with nothing in it but what the test installs."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def install(name: str, version: str, **built_for: str) -> None:
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        if built_for:
            (tmp_path / "horovod").mkdir()
            (tmp_path / "horovod/metadata.json").write_text(json.dumps(built_for))

    return install


CPU = (f"0.28.1+{SHORT}2.13.0.cpu", "2.13.0+cpu")
BUILDS: dict[str, tuple[dict[str, str], tuple[str, str] | None, dict[str, object], str | None]] = {
    "no Horovod": ({NAME: "2.13.0+cpu"}, None, {}, "make horovod"),
    "a build that fits": ({NAME: "2.13.0+cpu"}, (f"{CPU[0]}.openmpi4.1.4", CPU[1]), {"mpi": True}, None),
    "CUDA that PyPI's package names in one place only": ({NAME: "2.13.0"}, (f"0.28.1+{SHORT}2.13.0", "2.13.0+cu130"), {}, None),
    "a changed framework": ({NAME: "2.14.0+cpu"}, CPU, {"framework": NAME}, f"for {NAME} 2.13.0+cpu, but {NAME} 2.14.0+cpu is installed"),
    "CUDA after CPUs": ({NAME: "2.13.0+cu130"}, CPU, {}, "make horovod"),
    "a framework that came later": ({"torch": "2.13.0+cpu", "tensorflow": "2.21.0"}, CPU, {"framework": "torch"}, None),
    "and is requested": ({"torch": "2.13.0+cpu", "tensorflow": "2.21.0"}, CPU, {"framework": "tensorflow"}, "without tensorflow"),
    "no MPI": ({NAME: "2.13.0+cpu"}, CPU, {"mpi": True}, "mpicxx"),
    "a site's, by its own note": ({NAME: "2.1.2"}, ("0.28.1", "2.1.2"), {"framework": NAME, "mpi": True}, None),
}  # fmt: skip
"""Installed frameworks, Horovod with what it was built for, what is requested, and a part of the problem."""


@pytest.mark.parametrize("case", BUILDS)
def test_a_build_fits_or_the_message_says_what_to_type(installed, case: str) -> None:
    frameworks, horovod, asked, says = BUILDS[case]
    for name, version in frameworks.items():
        installed(name, version)
    if horovod:
        installed("horovod", horovod[0], **{KEY: horovod[1]})
    found = horovod_problem(asked.get("framework"), mpi=bool(asked.get("mpi")))
    assert found is None if says is None else says in found


@pytest.mark.parametrize("built", ["2.13.0+cpu", "2.6.0a0+ecf3bae40a.nv25.01", "2.14.0.dev20261101+cu130"])
def test_version_is_what_packaging_makes_of_it(built):
    """pip writes the normalised version. Ours must equal it exactly, or it would build again."""
    version = horovod_version({NAME: built}, ("openmpi4.1.4", "nccl"))
    assert str(Version(version)) == version
    assert Version(version).public == HOROVOD_VERSION


def test_a_run_on_this_machine_is_refused_without_it(make_config, request):
    asked = make_config("strategy=horovod", "trainer.devices=2")
    request.getfixturevalue("installed")(NAME, "2.13.0")
    [problem] = [p for p in local_problems(asked, CHECKS) if "Horovod" in p]
    assert problem.startswith("Horovod is not installed: run `make horovod`")
    assert problem.endswith("Without Horovod: strategy=auto.")


SAYS = f"framework={FIRST} needs zzq_none, which this environment does not have: run `make setup FRAMEWORK={FIRST}`"


def test_one_that_is_installed_is_not_missing() -> None:
    assert not framework_problem(FIRST) or len(FRAMEWORKS) > 1
    assert not all(map(framework_problem, FRAMEWORKS))


def test_what_to_type_is_said_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, make_config: Callable[..., Config]
) -> None:
    monkeypatch.setitem(packages.PACKAGES, FIRST, ("numpy", "zzq_none"))
    assert [p for p in local_problems(make_config(), CHECKS) if p.startswith(SAYS)]
