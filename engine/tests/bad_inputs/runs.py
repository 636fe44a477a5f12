"""Run folders that look as if they had trained, made without a framework."""

import hashlib
import json
from functools import cache
from pathlib import Path

import yaml

from train_anywhere.config.command.compose import compose

HERE = "/a-folder-that-is-replaced"


@cache
def frozen(*overrides: str) -> str:
    """config.yaml of a run in the folder HERE."""
    tree = compose([*overrides, f"paths.results={HERE}", "paths.data=/data"])
    return yaml.safe_dump(tree, sort_keys=False)


def make_run(run: Path, *overrides: str, job_id: str = "") -> None:
    """Make a run of two epochs with two checkpoints, submitted and ended if it has a `job_id`."""
    results = run.parent.parent
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(frozen(*overrides).replace(HERE, str(results)))
    (run / "overrides.txt").write_text("".join(f"{o}\n" for o in [*overrides, f"paths.results={results}"]))
    (run / "metrics.csv").write_text("epoch,step,train/loss,val/acc\n1,14,0.5,0.8\n2,28,0.4,0.9\n")
    for step in (14, 28):
        make_checkpoint(run / "checkpoints" / f"{step:08d}", step)
    (run / "checkpoints" / "newest").write_text("00000028\n")
    fields = {
        "format": 2, "state": "failed", "framework": "lightning", "strategy": "single", "launch": "local",
        "cluster": "slurm" if job_id else "local", "world_size": 1, "restarts": 0, "epoch": 2, "step": 28,
        "metrics": {"val/acc": 0.9}, "checkpoint": str(run / "checkpoints" / "00000028"),
    }  # fmt: skip
    (run / "run.json").write_text(json.dumps(fields, indent=2) + "\n")
    latest = results / "latest"
    latest.unlink(missing_ok=True)
    latest.symlink_to(run.relative_to(results))
    if job_id:
        (run / "jobs.txt").write_text(f"{job_id}\n")
        (run / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --job-name=digits\n")
        (run / f"slurm-{job_id}.out").write_text("epoch 1/2\n")
        (run / "code").mkdir()


def make_checkpoint(folder: Path, step: int) -> None:
    """Write a checkpoint with a valid manifest and a file of no framework."""
    folder.mkdir(parents=True)
    content = b"weights" * 100
    (folder / "model.ckpt").write_bytes(content)
    facts = {
        "format": 2, "step": step, "epoch": step // 14, "batch": 0, "metrics": {"val/acc": 0.9}, "value": step / 100, "seconds": 0.5,
        "framework": "lightning", "files": {"model.ckpt": {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}},
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(facts, indent=2) + "\n")
