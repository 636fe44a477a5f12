"""Describe the nodes of each site: partitions, GPUs, CPUs, memory, features, longest job.

The presets in `configs/cluster/` give the requests of a job. This table gives the resources of the scheduler, so
that the testbed accepts or refuses a script as the site would. The numbers are those of the presets, which name
their sources; the number of nodes is the testbed's.
"""

from dataclasses import dataclass

from tools.testbed.namespaces import TestbedError
from train_anywhere.errors import listed

GB = 1024
DAYS = "-00:00:00"
ACCOUNT, COMMENT, NO_MEM = "needs_account", "needs_comment", "refuses_memory"  # names in files/job_submit.lua
RULES = (ACCOUNT, COMMENT, NO_MEM)

NEURON_PARTITIONS = (
    "amd_a100nv_8", "cas_v100nv_8", "cas_v100nv_4", "cas_v100_4", "cas_v100_2", "eme_h200nv_8", "gh200_1",
)  # fmt: skip


@dataclass(frozen=True)
class Site:
    """One kind of node, and the rules for submissions.

    Attributes:
        partitions: the first one is the default.
        gres: GPUs of a node as in slurm.conf, `gpu:<type>:<count>` or `gpu:<count>`.
        cpus: CPUs that a job can have on a node.
        memory_mb: memory that a job can have on a node, in MiB.
        max_time: longest time limit, in Slurm's notation.
        node_name: printf pattern of the host names, numbered from 1.
        pbs: whether jobs get PBS_* variables and PBS_NODEFILE, as under a PBS server.
        rules: the checks at submission, some of ACCOUNT, COMMENT and NO_MEM.
    """

    partitions: tuple[str, ...]
    gres: str
    cpus: int
    memory_mb: int
    max_time: str
    features: tuple[str, ...] = ()
    node_name: str = "node%d"
    pbs: bool = False
    rules: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """The number of GPUs of a node."""
        return int(self.gres.split(":")[-1])

    @property
    def gpu_type(self) -> str | None:
        """The type of the GPUs in Slurm's terms, or None if they are untyped."""
        parts = self.gres.split(":")
        return parts[1] if len(parts) == 3 else None


def _alliance(
    gres: str, cpus: int, memory_gb: int, max_time: str = "7" + DAYS, rules: tuple[str, ...] = (ACCOUNT,)
) -> Site:
    """Return a cluster of the Digital Research Alliance of Canada, with an invented partition."""
    return Site(("gpu",), gres, cpus, memory_gb * GB, max_time, rules=rules)


SITES = {
    # not a real site: untyped GPUs, so that any `--gpus=N` fits, and all partitions and features of the presets
    "slurm": Site(
        partitions=("main", *NEURON_PARTITIONS, "alvis", "batch", "interactive_gpu", "gpu"),
        gres="gpu:8",
        cpus=64,
        memory_mb=500 * GB,
        max_time="14" + DAYS,
        features=("a100", "v100", "gpu_mem_32", "cpu_intel_platinum_8260", "cpu_amd_epyc_7543"),
    ),
    # DGX A100; its guide names no partition, so the name is invented
    "technion": Site(("main",), "gpu:a100:8", cpus=256, memory_mb=1000 * GB, max_time="7" + DAYS),
    "neuron": Site(
        partitions=NEURON_PARTITIONS,
        gres="gpu:8",
        cpus=64,
        memory_mb=500 * GB,
        max_time="2" + DAYS,
        node_name="gpu%d",
        rules=(COMMENT, NO_MEM),
    ),
    "alvis": Site(
        partitions=("alvis",),
        gres="gpu:A100:4",
        cpus=64,
        memory_mb=256 * GB,
        max_time="7" + DAYS,
        node_name="alvis3-%02d",  # with leading zeros, which are easily lost when a node list is expanded
        rules=(ACCOUNT,),
    ),
    "sockeye": Site(
        partitions=("gpu", "interactive_gpu"),
        gres="gpu:4",
        cpus=24,
        memory_mb=192 * GB,
        max_time="3" + DAYS,
        features=("gpu_mem_32", "gpu_mem_16"),
        rules=(ACCOUNT,),
    ),
    "sockeye_pbs": Site(("gpu",), "gpu:4", cpus=24, memory_mb=192 * GB, max_time="3" + DAYS, pbs=True),
    "narval": _alliance("gpu:a100:4", cpus=48, memory_gb=496),
    "fir": _alliance("gpu:h100:4", cpus=48, memory_gb=1120),
    "nibi": _alliance("gpu:h100:8", cpus=112, memory_gb=2000),
    "rorqual": _alliance("gpu:h100:4", cpus=64, memory_gb=496),
    "trillium": _alliance("gpu:h100:4", cpus=96, memory_gb=752, max_time="1" + DAYS, rules=(ACCOUNT, NO_MEM)),
    # V100 nodes; jobs can have 46 of the 48 CPUs and 383 GB
    "ibex": Site(
        partitions=("batch",),
        gres="gpu:v100:8",
        cpus=46,
        memory_mb=383 * GB,
        max_time="14" + DAYS,
        features=("v100", "gpu", "cpu_intel_platinum_8260"),
    ),
}


def find_site(name: str) -> Site:
    """Return the site of this name. Raises TestbedError: the site is not known."""
    if name not in SITES:
        raise TestbedError(f"the testbed has no site {name!r}: use one of {listed(SITES)}")
    return SITES[name]
