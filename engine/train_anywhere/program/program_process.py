"""The process of a program, and the signal that asks it to stop: it gets one under every launcher.

The launcher's signal may reach the program too, or only this process: with `proctrack/cgroup` Slurm signals the tasks of a job step
(https://slurm.schedmd.com/cgroup.conf.html, SignalChildrenProcesses), with other plugins all their descendants, Open MPI the process
group of a rank, a terminal the group in its foreground. So a second child, which any signal ends, shows whether the program got it.
"""

import ctypes
import os
import re
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path


class ProgramProcess:
    """A started program.

    Args:
        command: its words.
        environ: its environment.
        inherits: it keeps the output of this process, else gets pipes.
        folder: its working folder; None: that of this process.
        ignored: the signals that it ignores from the start. What this process ignores for itself is not ignored by the program.

    Raises:
        OSError: it can't be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        inherits: bool,
        folder: Path | None = None,
        ignored: Collection[int] = (),
    ) -> None:
        pipe = None if inherits else subprocess.PIPE
        # in a terminal only processes of its foreground group may read
        self._group = -1 if inherits or os.isatty(0) else 0
        # it ends with this process, which closes its input
        self._witness = subprocess.Popen(
            ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=self._group
        )
        try:
            self.child = subprocess.Popen(
                command,
                env=environ,
                cwd=folder,
                stdout=pipe,
                stderr=pipe,
                process_group=self._group,
                preexec_fn=partial(_prepare, ignored),
            )
        except OSError:
            self.close()
            raise
        self._early = self._witness.poll() is not None  # by a signal that may have come before the program

    def choose_signal(self, received: str) -> int:
        """Return the signal for the program: Ctrl-C as it was received, else USR1 if the program handles it, else TERM."""
        if received == "SIGINT":
            return signal.SIGINT
        return signal.SIGUSR1 if self.handles(signal.SIGUSR1) else signal.SIGTERM

    def handles(self, number: int) -> bool:
        """Return whether the program has a handler for a signal; False if /proc does not show it."""
        with suppress(OSError):
            status = Path(f"/proc/{self.child.pid}/status").read_text(errors="replace")
            if found := re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.M):
                return bool(int(found[1], 16) >> (number - 1) & 1)
        return False

    def pass_on(self, number: int) -> None:
        """Send a signal, unless the program has got it, or TERM, at the same time as this process."""
        if self._early or -(self._witness.poll() or 0) not in (number, signal.SIGTERM):
            self.child.send_signal(number)

    def kill(self) -> None:
        """Kill the program, and the processes that it has started if it does not run in a terminal."""
        if self._group == 0 and self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
        else:
            self.child.kill()

    def close(self) -> None:
        """End the second child."""
        self._witness.kill()
        self._witness.communicate()


def _prepare(ignored: Collection[int]) -> None:
    """Prepare the child: it ignores the same signals as if the user had started it, and ends with this process."""
    for number in signal.valid_signals():
        if number in ignored:
            signal.signal(number, signal.SIG_IGN)
        elif signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, man 2 prctl
