"""A callback of a member of a sweep that spoils its process."""

import os
import signal
import sys
import threading
import time

import lightning.pytorch as pl
import torch


class Spoiler(pl.Callback):
    """Crash, exit, change what is global, or report it.

    Args:
        how: one of the methods below.
    """

    def __init__(self, how: str) -> None:
        self.how = how

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Do it at the start of the training."""
        getattr(self, self.how)()

    def crash(self) -> None:
        """Die as after an error in C."""
        os.kill(os.getpid(), signal.SIGSEGV)

    def exit(self) -> None:
        """Leave with a code of our own."""
        sys.exit(130)

    def change(self) -> None:
        """Change what a next user of this process would see, and leave a thread and memory behind."""
        torch.set_default_dtype(torch.float64)
        os.environ["SPOILED"] = "yes"
        os.chdir("/")
        sys.modules["spoiled"] = sys
        threading.Thread(target=time.sleep, args=(20,), daemon=True).start()

    def look(self) -> None:
        """Report what is global."""
        seen = (
            torch.get_default_dtype(), os.environ.get("SPOILED"), os.getcwd() == "/", "spoiled" in sys.modules,
        )  # fmt: skip
        print(f"seen: {seen}", flush=True)

    def wait(self) -> None:
        """Train slowly."""
        print("waiting", flush=True)
        time.sleep(3)
