"""The golden files: what each preset and each launch method becomes, and all keys with their defaults. A change shows as a diff.

python tests/template/golden/renew.py      # or: make golden; then read `git diff tests/template/golden`
"""

import dataclasses
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent.parent))

from slurm.job import make_job  # noqa: E402
from slurm.render import render  # noqa: E402
from src.config.compose import compose, groups  # noqa: E402
from src.config.flat import flatten  # noqa: E402
from src.config.load import load  # noqa: E402

WAYS = [
    "srun",
    "torchrun",
    "mpirun",
]
CASES = {
    "slurm": "cluster=slurm",
    "slurm-elastic": "cluster=slurm trainer.nodes=2-4 trainer.devices=2 data.batch_size=96 cluster.retries=2",
    "pbs": "cluster=pbs trainer.nodes=2 trainer.devices=2",
    "technion": "cluster=technion trainer.nodes=2",
    "technion-uneven-srun": "cluster=technion trainer.nodes=2 trainer.total_devices=3",
    "technion-uneven-torchrun": "cluster=technion trainer.nodes=2 trainer.total_devices=3 launch=torchrun",
    "technion-uneven-mpirun": "cluster=technion trainer.nodes=2 trainer.total_devices=3 launch=mpirun",
    "technion-pyxis": "cluster=technion container=pyxis container.image='nvcr.io#nvidia/pytorch:25.09-py3'",
    "technion-pyxis-torchrun": "cluster=technion container=pyxis container.image=image.sqsh launch=torchrun trainer.nodes=2",
    "neuron": "cluster=neuron trainer.nodes=4 cluster.comment='field=nlp;appl=pytorch'",
    "alvis": "cluster=alvis trainer.nodes=2 cluster.account=NAISS2026-22-123",
    "sockeye": "cluster=sockeye cluster.account=st-alloc-1-gpu",
    "sockeye_pbs": "cluster=sockeye_pbs trainer.nodes=2 cluster.account=st-alloc-1-gpu cluster.time=1:00:00",
    "narval": "cluster=narval cluster.account=def-pi",
    "fir": "cluster=fir cluster.account=def-pi",
    "nibi": "cluster=nibi cluster.account=def-pi",
    "rorqual": "cluster=rorqual cluster.account=def-pi",
    "trillium": "cluster=trillium cluster.account=def-pi cluster.chain=3",
    "ibex": "cluster=ibex trainer.devices=8 cluster.conda=/ibex/me/env cluster.mail_user=me@kaust.edu.sa",
    "ibex-apptainer": "cluster=ibex container=apptainer container.image=image.sif launch=mpirun trainer.devices=2",
    "slurm-cpu": "cluster=slurm trainer.accelerator=cpu trainer.devices=2 cluster.venv=/home/me/venv",
    "neuron-horovodrun": "cluster=neuron trainer.nodes=2 launch=horovodrun",
    "pbs-horovodrun": "cluster=pbs trainer.nodes=2 trainer.devices=2 launch=horovodrun",
    "pbs-torchrun": "cluster=pbs trainer.devices=2 launch=torchrun",
    "slurm-packed": "cluster=slurm trainer.nodes=2 cluster.venv=/home/me/venv cluster.pack_env=true launch=mpirun",
    "slurm-staged": "cluster=slurm trainer.nodes=2 data=imagefolder data.stage=true container=apptainer container.image=image.sif",
    "slurm-sweep": "cluster=slurm cluster.max_running=2",
} | {f"neuron-{way}": f"cluster=neuron trainer.nodes=2 launch={way}" for way in WAYS}


def script(name: str) -> str:
    """The script of a case, with fixed folders and interpreter."""
    overrides = [*CASES[name].split(), "paths.results=/scratch/me/project/results", "paths.data=/nowhere"]
    run = "/scratch/me/project/results/digits/20261120-101502-a1b2"
    job = make_job(load(compose(overrides)), run, f"{run}/code", range(4) if name.endswith("sweep") else None)
    if job.python == sys.executable:
        job = dataclasses.replace(job, python="/home/me/.venv/bin/python")
    return render(job)


def options() -> str:
    """Every key with its default, and those that a choice of a group has besides or otherwise."""
    plain = keys()
    lines = [f"{key}: {value}" for key, value in plain.items()]
    for group in (
        "task",
        "data",
        "model",
        "optimizer",
        "schedule",
        "strategy",
        "callbacks",
        "loggers",
        "container",
    ):
        for choice in groups().get(group, ()):
            lines += ["", f"{group}={choice}"]
            chosen = keys(f"{group}={choice}")
            lines += [f"  {key}: {value}" for key, value in chosen.items() if plain.get(key, ...) != value]
    return "\n".join(lines) + "\n"


def keys(*overrides: str) -> dict[str, object]:
    """All keys that can be typed, with their values."""
    composed = flatten(compose([*overrides, "paths.results=results", "paths.data=data"]))
    return {
        key: value for key, value in composed.items() if "_target_" not in key and not key.endswith("_check_")
    }


def main() -> None:
    """Write all golden files, and take away those of cases that are gone."""
    for path in HERE.glob("*.sh"):
        if path.stem not in CASES:
            path.unlink()
    for name in CASES:
        (HERE / f"{name}.sh").write_text(script(name))
    (HERE / "options.txt").write_text(options())


if __name__ == "__main__":
    main()
