"""Members of a sweep on this machine, one after the other."""

import signal
from pathlib import Path
from typing import Any

import pytest

from train_anywhere.config.command.compose import compose
from train_anywhere.launch import local_run
from train_anywhere.training.preflight import CHECKS


def test_between_members_signals_are_the_sweep_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member's launcher takes them over."""
    before, found = signal.getsignal(signal.SIGTERM), list[Any]()

    def member(*_: object) -> int:
        found.append(signal.getsignal(signal.SIGTERM))
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        return 0

    class Servers:
        def get_starter(self, framework: str, ranks: int) -> None: ...

    for name, instead in {"run_here": member, "ForkServers": Servers, "protect_output": lambda: None}.items():
        monkeypatch.setattr(local_run, name, instead)
    words = [[f"seed={n}", "trainer.fast_dev_run=true", f"paths.results={tmp_path}"] for n in (1, 2)]
    local_run.run_all([compose(typed) for typed in words], words, CHECKS)
    assert [*found, signal.getsignal(signal.SIGTERM)] == [before] * 3
