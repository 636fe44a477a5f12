"""Any program as a job on the testbed: how it is submitted, and programs that requeue themselves."""

import re
from pathlib import Path

from engine.tests.slurm.login import Login, log
from tools.testing.weights import info
from train_anywhere.files import ROOT

PROGRAMS = Path("examples/programs")
TWO = ("cluster=slurm", "trainer.nodes=2", "trainer.devices=2")


def submit(login: Login, *words: str) -> tuple[str, Path]:
    """Run `python src/run.py words...` and return the job id and the run folder."""
    at = words.index("--")
    done = login.command("run", *words[:at], f"paths.results={login.results}", *words[at:])
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.match(r"Submitted job (\d+)", done.stdout)
    assert found, done.stdout
    (run,) = [p.parent for p in login.results.glob("*/*/jobs.txt") if p.read_text().strip() == found[1]]
    return found[1], run


def script(name: str) -> str:
    """The path of an example, as it is typed from another folder."""
    return str(ROOT / PROGRAMS / name)


def finished(login: Login, *words: str) -> Path:
    """Submit and wait for a program that must exit with 0. Return its run folder."""
    job, run = submit(login, *words)
    assert login.testbed.wait_job(job, 240) == "COMPLETED", log(run)
    assert info(run)["state"] == "completed"
    return run


def folder_of(login: Login, name: str, **files: str) -> Path:
    """A folder outside of the project with these files."""
    folder = login.folder / name
    folder.mkdir()
    for file, content in files.items():
        (folder / file.replace("_", ".")).write_text(content)
    return folder


LIGHTNING = """
import os, sys, time
import lightning.pytorch as pl, torch
from lightning.pytorch.plugins.environments import SLURMEnvironment

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, at):
        time.sleep(0.1)
        print("step", self.global_step, flush=True)
        return self.layer(batch).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

data = torch.utils.data.DataLoader(torch.ones(60, 1))
import signal
folder = os.environ["TRAIN_PERSISTENT_CHECKPOINTS"]
pl.Trainer(
    accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_progress_bar=False, default_root_dir=folder,
    plugins=[SLURMEnvironment(auto_requeue=True, requeue_signal=signal.SIGUSR1)],
).fit(Net(), data)
print("done", flush=True)
"""
