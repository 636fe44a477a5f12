"""What the engine's tests add to `train_anywhere.testing.plugin`."""

from collections.abc import Iterator

import pytest

from engine.tests.bad_inputs import summary
from train_anywhere.files import with_engine


@pytest.fixture(scope="package", autouse=True)
def engine_on_the_path() -> Iterator[None]:
    """Programs of these tests import the engine as if it was installed; those in tests/ have to find it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", with_engine()["PYTHONPATH"])
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end what became of the bad inputs."""
    reports = (r for outcome in ("passed", "failed") for r in terminalreporter.stats.get(outcome, []))
    if said := summary.line(reports):
        terminalreporter.write_line(said)
