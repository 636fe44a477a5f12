"""Stand-ins for Slurm's clients: shell scripts with the answers of a test."""

from pathlib import Path

from train_anywhere.checkpoints.store import refuse_unreadable
from train_anywhere.config.command.compose import compose
from train_anywhere.slurm.submission.prepare import start
from train_anywhere.training.preflight import data_problems

INVALID = "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1"


class Fakes:
    """Clients of Slurm that run a test's script and record their arguments in `asked`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._asked = folder / "bin", folder / "asked"
        self.queue, self.results = folder / "queue", folder / "results"
        self.folder.mkdir()
        self.queue.touch()
        self("squeue", f"cat {self.queue}; [ -s {self.queue} ] || {{ {INVALID}; }}")
        self("sbatch", 'echo "error: a test defines sbatch" >&2; exit 9')
        self("scancel", f"for i; do sed -i s/^$i.*/$i\\|CANCELLED/ {self.queue}; done")

    def __call__(self, name: str, script: str) -> None:
        (self.folder / name).write_text(f'#!/bin/sh\necho {name} "$@" >>{self._asked}\n{script}\n')
        (self.folder / name).chmod(0o755)

    def chain(self, last: str, good: int = 1) -> None:
        """Let sbatch accept `good` jobs, 4001 and so on, and then run `last`."""
        count = f"n=$(grep -c ^sbatch {self._asked})"
        accept = f"echo $((4000 + n))\\|PENDING >>{self.queue}; echo $((4000 + n)); exit 0"
        self("sbatch", f"{count}\nif [ $n -le {good} ]; then {accept}; fi\n{last}")

    def asked(self, name: str) -> list[str]:
        """Return the recorded arguments of a client."""
        lines = self._asked.read_text().splitlines() if self._asked.exists() else []
        return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]

    def runs(self) -> list[Path]:
        return sorted(p.parent for p in self.results.glob("*/*/config.yaml"))

    def submit(self, *words: str) -> None:
        words = ("cluster=slurm", f"paths.results={self.results}", *words)
        start([compose(words)], [words], data_problems, refuse_unreadable)
