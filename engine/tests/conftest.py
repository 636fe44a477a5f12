"""Fixtures and marks of the engine's tests besides `tools.testing.plugin`."""

import re
import signal
from collections.abc import Iterator

import pytest

from train_anywhere.files import with_engine

# a shell starts `make test &` with Ctrl-C ignored, and programs would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="package", autouse=True)
def engine_on_the_path() -> Iterator[None]:
    """Let programs of these tests import the engine as if it was installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", with_engine()["PYTHONPATH"])
        yield


NEEDS = {"mpi": "mpirun", "horovod": "horovod|hvd"}
"""What the parameters of a test with a real job contain if the job needs a tool that the test may not have as its mark."""


@pytest.hookimpl(tryfirst=True)  # before pytest applies -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that submit jobs with the tools of their case. Without them they are skipped."""
    for item in items:
        if item.get_closest_marker("slurm"):
            case = str(getattr(getattr(item, "callspec", None), "params", {}))
            for mark in (mark for mark, words in NEEDS.items() if re.search(words, case)):
                item.add_marker(mark)
