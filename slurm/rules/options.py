"""Values that would undo or break the script: options given twice, line breaks."""

import re
from collections.abc import Iterator

from slurm.rules.case import Case

OWN = {
    "job-name", "output", "error", "open-mode", "account", "partition", "qos", "time", "nodes", "ntasks", "ntasks-per-node",
    "tasks-per-node", "cpus-per-task", "gpus", "gpus-per-node", "gres", "mem", "mem-per-gpu", "constraint", "comment",
    "reservation", "exclude", "mail-user", "mail-type", "requeue", "no-requeue", "signal", "array",
}  # fmt: skip
"""Options that the script gives itself, so that all of them agree."""

SHORT = {
    "J": "job-name",
    "o": "output",
    "e": "error",
    "A": "account",
    "p": "partition",
    "q": "qos",
    "t": "time",
    "N": "nodes",
}
SHORT |= {"n": "ntasks", "c": "cpus-per-task", "G": "gpus", "C": "constraint", "x": "exclude", "a": "array"}
KEYS = {
    "nodes": "trainer.nodes",
    "job-name": "name",
    "ntasks": "trainer.devices",
    "ntasks-per-node": "trainer.devices",
}
KEYS |= {
    "gpus": "trainer.total_devices",
    "gpus-per-node": "trainer.devices",
    "gres": "trainer.devices",
    "array": "-m",
}


def extra_options(case: Case) -> Iterator[str]:
    """`cluster.extra` adds options; it must not repeat or undo those of the script."""
    for text in case.config.cluster.extra:
        option, value = _option(text)
        if not text.startswith("-"):
            yield f"cluster.extra: '{text}' is no option; write it as for sbatch, such as --licenses=x."
        elif option == "constraint":
            yield f"cluster.extra: of two --constraint the last wins; use 'cluster.constraint=[{case.job.constraint or 'a'},{value}]'."
        elif option == "gpus-per-task":
            yield "cluster.extra: --gpus-per-task hides a node's other GPUs from a rank (no NVLink between ranks); leave it out."
        elif option == "export" and "ALL" not in value.split(","):
            yield f"cluster.extra: --export={value} drops the login environment; use --export=ALL,{value}."
        elif case.config.cluster.scheduler == "slurm" and option in OWN:
            key = KEYS.get(option, "cluster." + option.replace("-", "_"))
            yield f"cluster.extra: the script gives --{option} itself, and two could contradict each other; use {key}=..."


def _option(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"--([a-z-]+)(?:[= ](.*))?|-(\w)[= ]?(.*)", text)
    if not match:
        return "", ""
    return (match[1], match[2] or "") if match[1] else (SHORT.get(match[3], match[3]), match[4])


def one_line(case: Case) -> Iterator[str]:
    """A line break in a value would end its line of the script."""
    c = case.config.cluster
    values = {f"cluster.{k}": v for k, v in vars(c).items() if isinstance(v, str)}
    values |= {f"cluster.{k}": " ".join(v) for k, v in {"extra": c.extra, "modules": c.modules}.items()}
    values |= {"cluster.constraint": case.job.constraint or "", "paths.results": case.config.paths.results}
    for key, value in values.items():
        if re.search(r"[\n\r\0]", value):
            yield f"{key}={value!r} has a line break in it, which a line of a batch script can't have; leave it out."


RULES = (extra_options, one_line)
