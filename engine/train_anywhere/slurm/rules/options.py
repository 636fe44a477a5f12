"""Values that would break the script: options that it sets itself, abbreviated ones included, and line breaks."""

import re
import shlex
from collections.abc import Iterator

from train_anywhere.slurm.rules.rule_request import Request

OWN = {
    "job-name", "output", "error", "open-mode", "account", "partition", "qos", "time", "nodes", "ntasks", "ntasks-per-node",
    "tasks-per-node", "cpus-per-task", "gpus", "gpus-per-node", "gres", "mem", "mem-per-gpu", "constraint", "comment",
    "reservation", "exclude", "exclusive", "begin", "nice", "mail-user", "mail-type", "requeue", "no-requeue", "signal", "array",
    "cpus-per-gpu", "ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core", "gpus-per-socket", "mem-per-cpu",
}  # fmt: skip
"""Options that the script sets itself, so that all of them agree, and others that contradict these."""

FORBIDDEN = {
    "wrap": "replaces the script",
    "parsable": "changes the answer that contains the job id",
    "test-only": "submits nothing; use dry_run=test",
    "wait": "makes sbatch wait; use wait=true",
    "clusters": "sends the job to a cluster that src/jobs.py does not query",
    "uid": "submits as another user",
    "gid": "submits as another group",
    "export-file": "drops the login environment",
    "help": "submits nothing",
    "usage": "submits nothing",
    "version": "submits nothing",
}
"""Options with which no job is submitted, or none that src/jobs.py can find, with the reason."""

SHORT = {
    "J": "job-name", "o": "output", "e": "error", "A": "account", "p": "partition", "q": "qos", "t": "time", "N": "nodes",
    "n": "ntasks", "c": "cpus-per-task", "G": "gpus", "C": "constraint", "x": "exclude", "b": "begin", "a": "array", "M": "clusters",
    "W": "wait", "h": "help", "V": "version",
}  # fmt: skip
"""https://slurm.schedmd.com/sbatch.html"""

OWN_PBS = {
    "N": "name", "o": "", "e": "", "A": "cluster.account", "q": "cluster.partition", "M": "cluster.mail_user",
    "m": "cluster.mail_type", "a": "cluster.begin", "p": "cluster.nice", "r": "cluster.requeue", "J": "-m",
    "I": "", "h": "", "z": "", "C": "", "S": "",
}  # fmt: skip
"""Options of qsub that the script sets itself, with the key to use; "" if there is none."""

KEYS = {
    "nodes": "trainer.nodes", "job-name": "name", "array": "-m", "gpus": "trainer.total_devices", "gres": "trainer.devices",
    "gpus-per-node": "trainer.devices", "gpus-per-socket": "trainer.devices", "ntasks": "trainer.devices",
    "ntasks-per-node": "trainer.devices", "ntasks-per-gpu": "trainer.devices", "ntasks-per-socket": "trainer.devices",
    "ntasks-per-core": "trainer.devices", "cpus-per-gpu": "cluster.cpus_per_task", "mem-per-cpu": "cluster.mem",
}  # fmt: skip
"""The key to use instead of an option of `OWN`, unless it has the same name in `cluster`."""


def extra_options(request: Request) -> Iterator[str]:
    """`cluster.extra` adds options; it must not repeat or contradict those of the script."""
    check = _slurm if request.config.cluster.scheduler == "slurm" else _pbs
    for text in request.config.cluster.extra:
        for sentence in _not_one_option(text) or check(text, request):
            yield f"cluster.extra: {sentence}"


def _not_one_option(text: str) -> list[str]:
    """Why a string is not a single option; empty if it is."""
    try:
        words = shlex.split(text)
    except ValueError:
        return [f"'{text}' has an opening quote without a closing one."]
    if not re.match(r"--?[A-Za-z]", text):
        return [f"'{text}' is not an option; write it as for sbatch, such as --licenses=x."]
    if "#" in re.sub(r"\"[^\"]*\"|'[^']*'", "", text):
        return [
            f"'{text}' has a # in it, at which the scheduler would cut the line; put the value in quotes."
        ]
    if len(words) > 2 or (len(words) == 2 and ("=" in words[0] or words[1].startswith("-"))):
        return [
            f"'{text}' is more than one option; write a list of them, ['{words[0]}','{' '.join(words[1:])}']."
        ]
    return []


def _slurm(text: str, request: Request) -> Iterator[str]:
    written, value = _option(text)
    option = _completed(written)
    short = "" if option == written else f" (--{written} is short for it)"
    if option == "constraint":
        yield f"of two --constraint options only the last counts; use 'cluster.constraint=[{request.job.constraint or 'a'},{value}]'."
    elif option == "gpus-per-task":
        yield "--gpus-per-task hides a node's other GPUs from a rank (no NVLink between ranks); leave it out."
    elif option == "export" and "ALL" not in value.split(","):
        yield f"--export={value} drops the login environment; use --export=ALL,{value}."
    elif option in FORBIDDEN:
        yield f"--{option}{short} {FORBIDDEN[option]}; leave it out."
    elif option in OWN:
        key = KEYS.get(option, "cluster." + option.replace("-", "_"))
        yield f"the script sets --{option} itself{short}, and two could contradict each other; use {key}=..."


def _pbs(text: str, request: Request) -> Iterator[str]:
    letter, value = text[1], text[2:].strip()
    if letter in OWN_PBS and not text.startswith("--"):
        use = f"use {OWN_PBS[letter]}=..." if OWN_PBS[letter] else "leave it out."
        yield f"the script sets -{letter} itself, or can't work with it; {use}"
    elif letter == "l" and re.match(r"(select|nodes|ncpus|mem|walltime|ngpus)\b", value):
        yield f"the script sets -l {value.partition('=')[0]} itself; use trainer.nodes, trainer.devices, cluster.mem or cluster.time."


def _option(text: str) -> tuple[str, str]:
    """The long name of an option, possibly abbreviated, and its value."""
    match = re.fullmatch(r"--([A-Za-z-]+)(?:[= ](.*))?|-(\w)[= ]?(.*)", text, re.DOTALL)
    if not match:
        return "", ""
    return (match[1], match[2] or "") if match[1] else (SHORT.get(match[3], match[3]), match[4])


def _completed(option: str) -> str:
    """The full name of an abbreviated long option, as sbatch completes it; "" and single letters stay."""
    known = [*OWN, *FORBIDDEN, "gpus-per-task", "export"]
    if option in known or len(option) < 2:
        return option
    return min((name for name in known if name.startswith(option)), default=option)


def one_line(request: Request) -> Iterator[str]:
    """A line break in a value would end its line in the script."""
    c = request.config.cluster
    values = {f"cluster.{k}": v for k, v in vars(c).items() if isinstance(v, str)}
    values |= {f"cluster.{k}": " ".join(v) for k, v in {"extra": c.extra, "modules": c.modules}.items()}
    values |= {
        "cluster.constraint": request.job.constraint or "",
        "paths.results": request.config.paths.results,
    }
    for key, value in values.items():
        if re.search(r"[\n\r\0]", value):
            yield f"{key}={value!r} has a line break in it, which a line of a batch script can't have; leave it out."


def local_disk(request: Request) -> Iterator[str]:
    """A node's own disk; a relative path would be below the project, which all nodes share."""
    folder = request.config.cluster.local_disk
    if not folder.startswith(("/", "$")):
        yield f"cluster.local_disk={folder} is a relative path, and a node's own disk has an absolute one; use /tmp, or '$SLURM_TMPDIR'."


RULES = (extra_options, one_line, local_disk)
