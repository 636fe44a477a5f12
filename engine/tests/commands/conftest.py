"""The verbs of jobs.py with a scripted scheduler. A real one is in tests/slurm."""

import json
from pathlib import Path
from typing import Any

import pytest

from train_anywhere.commands import jobs
from train_anywhere.runs.reopen.trust import remember_script


class Verbs:
    """Run verbs of jobs.py on run folders that are made up.

    Args:
        top: an empty folder. `queue` below it is what squeue prints and scancel empties, `asked` has the calls that change jobs.
        capsys: what the verbs print.
    """

    def __init__(self, top: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys, self.results, self.bin = capsys, top / "results", top / "bin"
        self.queue, self.asked = top / "squeue", top / "asked"
        self.bin.mkdir()
        self.queue.write_text("")
        self.client("squeue", f"cat {self.queue}")
        self.client("scancel", f'echo scancel "$@" >>{self.asked}; : >{self.queue}')
        self.client("sacct", "echo Slurm accounting storage is disabled >&2; exit 1")
        self.client("scontrol", "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1")
        self.client("sbatch", f'echo sbatch "$@" >>{self.asked}; echo 9')

    def client(self, name: str, script: str) -> None:
        """Write a client of the scheduler that runs a line of the shell."""
        (self.bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / name).chmod(0o755)

    def make(
        self, run_id: str = "20260101-000000-aaaa", *job_ids: str, script: bool = True, **info: object
    ) -> Path:
        """Return the folder of a run that was submitted, or of one that ran here if it has no script."""
        folder = self.results / "digits" / run_id
        folder.mkdir(parents=True)
        (folder / "config.yaml").touch()
        (folder / "run.json").write_text(json.dumps({"format": 2, "cluster": "slurm", **info}))
        (folder / "jobs.txt").write_text("".join(f"{i}\n" for i in job_ids))
        if script:
            self.write_script(folder)
        (self.results / "latest").unlink(missing_ok=True)
        (self.results / "latest").symlink_to(folder)
        return folder

    def sweep(self, *states: str) -> str:
        """Return the name of an array, job 7, whose members have these states."""
        base = self.results / "digits" / "20260101-000000-aaaa"
        base.mkdir(parents=True)
        self.write_script(base)
        for member, state in enumerate(states):
            self.make(f"{base.name}-{member}", f"7_{member}", script=False, state=state)
        return base.name

    @staticmethod
    def write_script(folder: Path) -> None:
        (folder / "job.sbatch").write_text("#!/bin/sh\n")
        remember_script(folder / "job.sbatch")

    def run(self, *words: str, code: int = 0, results: Path | None = None) -> tuple[str, str]:
        """Return what a verb prints to both streams. Its exit code must be `code`."""
        self.capsys.readouterr()
        assert jobs.main([*words, "--results", str(results or self.results)]) == code
        out, err = self.capsys.readouterr()
        return out, err

    def refused(self, *words: str, **where: Path) -> str:
        """Return the message of a verb that must be refused."""
        return self.run(*words, code=2, **where)[1]

    def json(self, *words: str, code: int = 0) -> dict[str, Any]:
        """Return what a verb prints with --json."""
        told: dict[str, Any] = json.loads(self.run(*words, "--json", code=code)[0])
        return told


@pytest.fixture
def verbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Verbs:
    made = Verbs(tmp_path, capsys)
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    return made


def state(folder: Path) -> str:
    """Return the state in a folder's run.json."""
    return str(json.loads((folder / "run.json").read_text())["state"])
