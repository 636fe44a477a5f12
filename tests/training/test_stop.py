"""Signals set a flag; the second Ctrl-C interrupts at once. Real signals in a real process."""

import signal
import subprocess
import sys
import time

import pytest

from src.files import ROOT

PROGRAM = """
import sys, time
from src.training.stop import Stop
stop = Stop().install()
print("ready", flush=True)
for _ in range(200):
    time.sleep(0.05)
    if stop.requested and sys.argv[1] == "flag":
        print(stop.requested); sys.exit(7)
"""


def start(mode: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, mode],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_a_signal_is_a_flag(name: str) -> None:
    process = start("flag")
    process.send_signal(signal.Signals[name])
    out, err = process.communicate(timeout=20)
    assert (out.strip(), process.returncode) == (name, 7)
    assert f"{name}: finishing this step and saving a checkpoint." in err


def test_the_second_ctrl_c_interrupts() -> None:
    process = start("loop")
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in err
