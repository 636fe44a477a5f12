"""Rules about the packages of the Python that submits, which the ranks use too unless the job has an environment of its own.

They are left out of a dry run on another machine.
"""

from collections.abc import Iterator

from train_anywhere.config.checks.strategy_table import SUPPORTED
from train_anywhere.distributed.packages import missing_framework
from train_anywhere.slurm.rules.rule_request import Request


def horovod(request: Request) -> Iterator[str]:
    """A Horovod that fits the framework and the launch method."""
    job = request.job
    if other_environment(request) or "horovod" not in (job.strategy, job.launch.removesuffix("run")):
        return
    # reads what is installed: not for every submission
    from train_anywhere.distributed.horovod.installation import horovod_problem

    if problem := horovod_problem(job.framework, mpi=job.launch == "mpirun"):
        several = [n for n, c in SUPPORTED[job.framework].items() if c.several_nodes and n != "horovod"]
        yield f"{problem} Without Horovod: strategy={'|'.join(several)} launch=auto."


def framework(request: Request) -> Iterator[str]:
    """The packages of the framework."""
    if not other_environment(request) and (problem := missing_framework(request.job.framework)):
        yield problem


def other_environment(request: Request) -> bool:
    """Whether the ranks may see other packages than the process that submits."""
    c = request.config.cluster
    return request.config.container.name != "none" or bool(c.conda or c.venv or c.modules or c.setup)


RULES = (framework, horovod)
