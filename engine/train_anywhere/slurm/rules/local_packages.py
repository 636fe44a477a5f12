"""Rules about the packages of the submitting Python, which the ranks use too unless the job sets up another environment.

A dry run for another machine skips them.
"""

from collections.abc import Iterator
from importlib.util import find_spec

from train_anywhere.config.checks.strategy_table import SUPPORTED
from train_anywhere.distributed.packages import cpu_build, framework_problem
from train_anywhere.slurm.rules.rule_request import Request


def horovodrun(request: Request) -> Iterator[str]:
    """Report a missing horovodrun for a program, which may use Horovod with any framework."""
    if not request.job.command or request.job.launch != "horovodrun" or uses_other_environment(request):
        return
    if not find_spec("horovod"):
        yield "launch=horovodrun needs Horovod, which is not installed: run `make horovod`, or use launch=srun|torchrun|mpirun."


def horovod(request: Request) -> Iterator[str]:
    """Report a missing Horovod, or one that does not fit the framework or the launch method."""
    job = request.job
    if job.command or uses_other_environment(request):
        return
    if "horovod" not in (job.strategy, job.launch.removesuffix("run")):
        return
    # imported only when needed, because it reads the installed packages
    from train_anywhere.distributed.packages import horovod_problem

    if problem := horovod_problem(job.framework, mpi=job.launch == "mpirun"):
        several = [n for n, c in SUPPORTED[job.framework].items() if c.several_nodes and n != "horovod"]
        yield f"{problem} Without Horovod: strategy={'|'.join(several)} launch=auto."


def framework(request: Request) -> Iterator[str]:
    """Report missing packages of the framework."""
    if request.job.command or uses_other_environment(request):
        return
    if problem := framework_problem(request.job.framework):
        yield problem


def uses_other_environment(request: Request) -> bool:
    """Return whether the ranks may see other packages than the submitting process."""
    c = request.config.cluster
    return request.config.container.name != "none" or bool(c.conda or c.venv or c.modules or c.setup)


def cpu_packages(request: Request) -> Iterator[str]:
    """Note that a job with GPUs would train on CPUs, because the framework is built for them."""
    job = request.job
    if not job.gpus or job.command or uses_other_environment(request):
        return
    if build := cpu_build(job.framework):
        yield (
            f"{build} is built for CPUs, and the job requests GPUs, which it can't use: `make setup WHEELS=gpu`, "
            "or trainer.accelerator=cpu."
        )


RULES = (framework, horovod, horovodrun)
NOTES = (cpu_packages,)
