"""The share of one of several members of a sweep that run on a node at the same time: CPUs and a GPU."""

import os
from collections.abc import MutableMapping

from train_anywhere.distributed.layout import cuda_visible_devices, visible_gpus

SHARE = "TRAIN_SHARE"
"""Variable with the number of a member from 0, the number of members, and the CPUs of each: `2/8/4`."""


def take_share(environ: MutableMapping[str, str] = os.environ) -> None:
    """Keep this process to the CPUs and the GPU of its member, before a framework looks for them.

    The CPUs stay what they are if the process may use others than those of the members: the numbers of other jobs' are not known.
    """
    slot, members, each = map(int, environ.get(SHARE, "0/1/1").split("/"))
    if members == 1:
        return
    if hasattr(os, "sched_getaffinity"):
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) == members * each:
            os.sched_setaffinity(0, cpus[slot * each : (slot + 1) * each])
        elif members * each < len(cpus) <= 2 * members * each:  # two threads of each core
            os.sched_setaffinity(0, cpus[slot::members])
    gpus = cuda_visible_devices(environ) or [str(number) for number in range(visible_gpus(environ))]
    if gpus:
        environ["CUDA_VISIBLE_DEVICES"] = gpus[slot * len(gpus) // members]
