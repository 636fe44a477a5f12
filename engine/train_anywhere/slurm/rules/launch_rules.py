"""Rules about the launch method of the ranks, and about their container."""

from collections.abc import Iterator
from pathlib import Path

from train_anywhere.distributed.layout import support
from train_anywhere.slurm.rules.rule_request import Request


def launch(request: Request) -> Iterator[str]:
    """Report a launch method that does not fit the strategy or the scheduler."""
    job = request.job
    known = support(job.framework, job.strategy).launch
    if job.world_size > 1 and job.launch not in known:  # any method can start one rank
        yield f"launch={job.launch} can't start strategy={job.strategy} of {job.framework}; use launch={'|'.join(known)}."
    if request.config.cluster.scheduler == "pbs" and job.launch == "srun":
        yield "launch=srun needs Slurm, and this cluster has PBS; use launch=mpirun."
    if request.config.cluster.scheduler == "pbs" and job.elastic:
        yield f"PBS starts a job with all its nodes, and this one may have {job.fewest} to {job.nodes}; use trainer.nodes={job.nodes}."
    elif job.elastic and job.launch == "mpirun" and job.cluster.no_kill:
        yield (
            "launch=mpirun may wait for a node that died instead of ending, so a job of a range of nodes can't continue; use "
            "cluster.no_kill=false, with which Slurm requeues it, or another launch=."
        )
    if request.config.cluster.scheduler == "pbs" and job.launch == "torchrun" and job.nodes > 1:
        yield "launch=torchrun starts one torchrun per node through srun, which PBS does not have; use launch=mpirun."
    if request.config.cluster.scheduler == "pbs" and not job.even:
        yield f"trainer.total_devices={sum(job.devices)}: uneven jobs are not supported on PBS; use trainer.devices."


def container(request: Request) -> Iterator[str]:
    """Report a missing image, or a launch method that can't start ranks in a container."""
    c, job = request.config.container, request.job
    if c.name == "none":
        return
    if c.image is None:
        yield f"container={c.name} needs an image; use container.image=FILE."
    elif _is_file(c.image) and not Path(c.image).exists():
        make = "enroot import -o" if c.name == "pyxis" else "apptainer build"
        yield f"container.image={c.image} does not exist; check the path, or make it: `{make} {c.image} docker://...`."
    if c.name == "pyxis" and (
        job.launch in ("mpirun", "horovodrun") or request.config.cluster.scheduler != "slurm"
    ):
        yield f"container=pyxis is part of srun, and launch={job.launch} does not start ranks with srun; use launch=srun."
    if c.name == "apptainer" and job.launch == "horovodrun":
        yield "launch=horovodrun can't start ranks inside a container; use launch=srun or launch=mpirun."


def mounts(request: Request) -> Iterator[str]:
    """Report entries of container.mounts that are not FOLDER, OUTSIDE:INSIDE or OUTSIDE:INSIDE:OPTIONS."""
    if request.config.container.name == "none":
        return
    for text in request.config.container.mounts:
        parts = text.split(":")
        if len(parts) > 3 or not all(parts) or "," in text or not all(p.startswith("/") for p in parts[1:2]):
            yield (
                f"container.mounts: '{text}' is not a folder, nor of the form OUTSIDE:INSIDE; use container.mounts=[/scratch/me,/a:/in]."
            )


def _is_file(image: str) -> bool:
    return image.startswith(("/", "./", "../", "~")) or image.endswith((".sqsh", ".sif"))


RULES = (launch, container, mounts)
