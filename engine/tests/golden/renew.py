"""The golden files: the script of each preset and launch method, and all keys with defaults.

A change shows as a diff. One script is kept whole. Of all others `headers.txt` has the scheduler's lines, and the lines in
which the rest differs from it.

python engine/tests/golden/renew.py      # or: make golden; then read `git diff engine/tests/golden`
"""

import argparse
import difflib
import sys
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parents[2]), str(HERE.parents[1])]

from train_anywhere.config.command.compose import compose, list_groups  # noqa: E402
from train_anywhere.config.keys import flatten  # noqa: E402
from train_anywhere.config.load import load  # noqa: E402
from train_anywhere.files import ROOT  # noqa: E402
from train_anywhere.slurm.script.job import make_job  # noqa: E402
from train_anywhere.slurm.script.render import render  # noqa: E402

BODY = "slurm"
"""The case whose script is kept whole."""

CASES = {
    "slurm": "cluster=slurm",
    "alvis": "cluster=alvis trainer.nodes=2 cluster.account=NAISS2026-22-123",
    "arrhenius": "cluster=arrhenius trainer.nodes=2 cluster.account=naiss2026-1-gpu",
    "clariden": "cluster=clariden trainer.nodes=2",
    "fir": "cluster=fir cluster.account=def-pi",
    "ibex": "cluster=ibex trainer.devices=8 cluster.conda=/ibex/me/env cluster.mail_user=me@kaust.edu.sa",
    "ibex-apptainer": "cluster=ibex container=apptainer container.image=image.sif launch=mpirun trainer.devices=2",
    "leonardo": "cluster=leonardo trainer.nodes=2 cluster.account=IscrC_name cluster.gres=tmpfs:100g",
    "leonardo-uneven": "cluster=leonardo trainer.nodes=2 trainer.total_devices=3 cluster.gres=tmpfs:10g",
    "lumi": "cluster=lumi trainer.nodes=2 cluster.account=project_465000001",
    "narval": "cluster=narval cluster.account=def-pi",
    "neuron": "cluster=neuron trainer.nodes=4 cluster.comment='field=nlp;appl=pytorch'",
    "neuron-horovodrun": "cluster=neuron trainer.nodes=2 launch=horovodrun",
    "neuron-mpirun": "cluster=neuron trainer.nodes=2 launch=mpirun",
    "neuron-srun": "cluster=neuron trainer.nodes=2 launch=srun",
    "neuron-torchrun": "cluster=neuron trainer.nodes=2 launch=torchrun",
    "nibi": "cluster=nibi cluster.account=def-pi",
    "pbs": "cluster=pbs trainer.nodes=2 trainer.devices=2",
    "pbs-horovodrun": "cluster=pbs trainer.nodes=2 trainer.devices=2 launch=horovodrun",
    "pbs-torchrun": "cluster=pbs trainer.devices=2 launch=torchrun",
    "pbs-options": "cluster=pbs cluster.exclusive=true cluster.begin=2026-12-01T08:00 cluster.nice=100",
    "perlmutter": "cluster=perlmutter trainer.nodes=2",
    "roihu": "cluster=roihu cluster.account=project_2001234",
    "rorqual": "cluster=rorqual cluster.account=def-pi",
    "slurm-cpu": "cluster=slurm trainer.accelerator=cpu trainer.devices=2 cluster.venv=/home/me/venv",
    "slurm-elastic": "cluster=slurm trainer.nodes=2-4 trainer.devices=2 data.batch_size=96 cluster.retries=2",
    "slurm-no-gpus": "cluster=slurm cluster.gpu_request=none trainer.nodes=2 trainer.devices=2 cluster.gres=nvme:9",
    "slurm-no-gpus-uneven": "cluster=slurm cluster.gpu_request=none trainer.nodes=2 trainer.total_devices=3 data.batch_size=48",
    "slurm-no-limits": "cluster=slurm cluster.mem=0 cluster.time=0 cluster.exclusive=user",
    "slurm-options": "cluster=slurm trainer.devices=2 cluster.exclusive=true cluster.begin=2026-12-01T08:00 cluster.nice=100"
    " cluster.time=600 cluster.gres=tmpfs:10g cluster.mem_per_cpu=6G cluster.cpus_per_task=5",
    "slurm-staged": "cluster=slurm trainer.nodes=2 data=imagefolder data.stage=true container=apptainer container.image=image.sif",
    "slurm-sweep": "cluster=slurm cluster.max_running=2",
    "slurm-time-min": "cluster=slurm cluster.time=8:00:00 cluster.time_min=1:00:00 cluster.nodelist=node3",
    "snellius": "cluster=snellius trainer.devices=2 cluster.time=24:00:00",
    "sockeye": "cluster=sockeye cluster.account=st-alloc-1-gpu",
    "sockeye_pbs": "cluster=sockeye_pbs trainer.nodes=2 cluster.account=st-alloc-1-gpu cluster.time=1:00:00",
    "technion": "cluster=technion trainer.nodes=2",
    "technion-pyxis": "cluster=technion container=pyxis container.image='nvcr.io#nvidia/pytorch:25.09-py3'",
    "technion-pyxis-torchrun": "cluster=technion container=pyxis container.image=image.sqsh launch=torchrun trainer.nodes=2",
    "technion-uneven-mpirun": "cluster=technion trainer.nodes=2 trainer.total_devices=3 launch=mpirun",
    "technion-uneven-srun": "cluster=technion trainer.nodes=2 trainer.total_devices=3",
    "technion-uneven-torchrun": "cluster=technion trainer.nodes=2 trainer.total_devices=3 launch=torchrun",
    "trillium": "cluster=trillium cluster.account=def-pi cluster.chain=3",
}


@cache
def script(name: str) -> str:
    """The script of a case, with fixed folders and interpreter."""
    overrides = [*CASES[name].split(), "paths.results=/scratch/me/project/results", "paths.data=/nowhere"]
    run = "/scratch/me/project/results/digits/20261120-101502-a1b2"
    job = make_job(load(compose(overrides)), run, f"{run}/code", range(4) if name.endswith("sweep") else None)
    here = "/home/me/.venv/bin/python"
    return render(job).replace(job.supervisor, here).replace(str(ROOT), "/home/me/project")


def headers() -> str:
    """Return the header of each other case, and its lines that differ from a plain script."""
    lines: list[str] = []
    (_, plain) = split(script(BODY))
    for name, overrides in CASES.items():
        if name == BODY:
            continue
        header, body = split(script(name))
        differences = difflib.unified_diff(plain, body, n=0, lineterm="")
        changed = [line for line in list(differences)[2:] if not line.startswith("@@")]
        lines += [f"==== {name}: {overrides}", *header, f"---- besides {BODY}.sh", *changed, ""]
    return "\n".join(lines)


def split(text: str) -> tuple[list[str], list[str]]:
    """Return the lines of a script up to the first empty one, and the others."""
    header, _, body = text.partition("\n\n")
    return header.splitlines(), body.splitlines()


def options() -> str:
    """Every key with its default, and those that a choice of a group has besides or otherwise."""
    plain = keys()
    lines = [f"{key}: {value}" for key, value in plain.items()]
    names = (
        "task", "data", "model", "optimizer", "schedule", "strategy", "callbacks", "loggers", "container",
    )  # fmt: skip
    choices = [f"{group}={choice}" for group in names for choice in list_groups().get(group, ())]
    presets = sorted({words.split()[0] for words in CASES.values()})
    for choice in [*choices, *presets]:
        lines += ["", choice]
        lines += [f"  {key}: {value}" for key, value in keys(choice).items() if plain.get(key, ...) != value]
    return "\n".join(lines) + "\n"


def keys(*overrides: str) -> dict[str, object]:
    """All keys that can be typed, with their values."""
    composed = flatten(compose([*overrides, "paths.results=results", "paths.data=data"]))
    return {
        key: value for key, value in composed.items() if "_target_" not in key and not key.endswith("_check_")
    }


def files() -> dict[str, str]:
    """Return the name and the content of every golden file."""
    return {f"{BODY}.sh": script(BODY), "headers.txt": headers(), "options.txt": options()}


def main() -> None:
    """Write all golden files, and remove those of cases that are gone."""
    for path in HERE.glob("*.sh"):
        path.unlink()
    for name, content in files().items():
        (HERE / name).write_text(content)


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    main()
