"""Real signals set a flag. The second Ctrl-C interrupts at once."""

import signal
import subprocess

import pytest

from tools.testing.processes import start_python
from train_anywhere.job.rank_process import Stop

PROGRAM = """
import sys, time
from train_anywhere.job.rank_process import Stop
stop = Stop().install()
if sys.argv[1] == "taken":
    import ctypes, signal
    ctypes.CDLL(None).signal(int(signal.SIGTERM), ctypes.c_void_p(1))  # SIG_IGN, as Python never hears
    stop.reinstall()
print("ready", flush=True)
for _ in range(2000):
    time.sleep(0.05)
    if stop.requested and sys.argv[1] != "loop":
        print(stop.requested); sys.exit(7)
"""


def start(mode: str) -> "subprocess.Popen[str]":
    process = start_python("-c", PROGRAM, mode)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_a_signal_is_a_flag(name: str) -> None:
    process = start("flag")
    process.send_signal(signal.Signals[name])
    out, err = process.communicate(timeout=90)
    assert (out.strip(), process.returncode) == (name, 7)
    assert f"{'Ctrl-C' if name == 'SIGINT' else name}: finishing this step and saving a checkpoint." in err


def test_a_signal_that_a_library_took_is_taken_back() -> None:
    process = start("taken")
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=90)[0].strip() == "SIGTERM"


def test_what_was_never_installed_is_not_taken() -> None:
    before = signal.getsignal(signal.SIGTERM)
    Stop().reinstall()
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_second_ctrl_c_interrupts() -> None:
    process = start("loop")
    assert process.stderr
    process.send_signal(signal.SIGINT)
    process.stderr.readline()  # it has heard the first
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=90)
    assert "KeyboardInterrupt" in err
