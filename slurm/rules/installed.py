"""Rules about what is installed in the Python that submits, which is the one of the ranks unless the job makes another.

A dry run elsewhere does not ask them.
"""

from collections.abc import Iterator

from slurm.rules.request import Request
from src.config.strategies import SUPPORTED
from src.distributed.horovod_install import horovod_problem


def horovod(request: Request) -> Iterator[str]:
    """A Horovod that fits the framework and the launch method."""
    job = request.job
    if other_environment(request) or "horovod" not in (job.strategy, job.launch.removesuffix("run")):
        return
    # reads what is installed: not for every submission
    if problem := horovod_problem(job.framework, mpi=job.launch == "mpirun"):
        several = [n for n, c in SUPPORTED[job.framework].items() if c.several_nodes and n != "horovod"]
        yield f"{problem} Without Horovod: strategy={'|'.join(several)} launch=auto."


def other_environment(request: Request) -> bool:
    """Whether the ranks may see other packages than the process that submits."""
    c = request.config.cluster
    return request.config.container.name != "none" or bool(c.conda or c.venv or c.modules or c.setup)


RULES = (horovod,)
