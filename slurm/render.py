"""Render the batch script of a job, a pure function: the same job gives the same script.

The templates in `slurm/templates` are shell scripts with placeholders. Every value that comes from the user passes a filter:
`sh` for the shell, `option` for a line that the scheduler reads.
"""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress

from slurm import begin, units
from slurm.job import Job
from src.config.paths import absolute, on_node
from src.errors import ConfigError
from src.files import ROOT

TEMPLATES = ROOT / "slurm" / "templates"


def render(job: Job) -> str:
    """The batch script of `job`."""
    from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined

    cache = compiled_templates()
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        bytecode_cache=FileSystemBytecodeCache(cache) if cache else None,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "sh": shlex.quote,
        "option": option,
        "variable": variable,
        "folder": folder,
        "members": ranges,
        "clock": units.clock,
        "short_size": units.short_size,
        "pbs_time": begin.of_pbs,
    }
    c = job.cluster
    return environment.get_template(f"{c.scheduler}.sh.j2").render(
        job=job,
        c=c,
        login=bool(c.modules or c.conda),  # only a login shell has `module` and `conda`
        log=log_path(job),
        python='"$CODE/slurm/packed/python"' if job.packed else shlex.quote(job.python),
        gpu_type=f"{c.gpu_type}:" if c.gpu_type else "",
        # of an elastic job the shell knows: it counts who is there before each start of the ranks
        nodes='"$NODES"' if job.elastic else job.nodes,
        world=f'"$((NODES * {job.ranks[0]}))"' if job.elastic else job.world_size,
        there=' --overlap --nodelist="$NODELIST"' if job.elastic else "",
        distribution=distribution(job),
        pyxis=pyxis(job),
        apptainer=apptainer(job),
    )


def compiled_templates() -> str | None:
    """The folder for compiled templates, beside them as for Python; None if it can't be written."""
    folder = TEMPLATES / "__pycache__"
    if sys.dont_write_bytecode:
        return None
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
    return str(folder) if os.access(f"{folder}/", os.W_OK) else None  # the slash: only if it is a folder


def log_path(job: Job) -> str:
    """Path of the job's log without .out and .err; Slurm fills in %j (job) and %A_%a (member of an array)."""
    escaped, kind = job.run.replace("%", "%%"), job.cluster.scheduler
    return f"{escaped}/{kind}-%j" if job.members is None else f"{escaped}-%a/{kind}-%A_%a"


def option(value: object) -> str:
    """A value for a line of options; in double quotes if the scheduler would cut or split it (`nvcr.io#nvidia`).

    Raises:
        ConfigError: it has a line break, after which the rest would be run as a command.
    """
    text = str(value)
    if re.search(r"[\n\r\0]", text):
        raise ConfigError(f"{text!r} has a line break in it, which a line of a batch script can't have.")
    if re.fullmatch(r"[\w@%+=:,./&|()\[\]*~^-]*", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def variable(text: str) -> str:
    """A folder to be put in double quotes in the shell: $NAME stays a variable, everything else is literal."""
    return re.sub(r'(["\\`]|\$(?![A-Za-z_]))', r"\\\1", text)


def folder(path: str) -> str:
    """A folder as a word of the shell: one on the node's disk keeps its variable, a relative one is below the project."""
    return f'"{variable(path)}"' if on_node(path) else shlex.quote(str(absolute(path)))


def ranges(numbers: Sequence[int]) -> str:
    """Numbers as Slurm lists them: 0-3,7."""
    parts: list[list[int]] = []
    for n in sorted(numbers):
        if parts and n == parts[-1][1] + 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def distribution(job: Job) -> str:
    """Return srun's order of the ranks: node after node, as TRAIN_HOSTS lists them, on sockets as `cluster.extra` says."""
    options = " ".join(job.cluster.extra)
    sockets = re.search(r"(?:^| )(?:--distribution[= ]|-m ?)[\w*]+(:[\w*:]+)", options)
    return f"block{sockets[1] if sockets else ''}"


def pyxis(job: Job) -> str:
    """srun's options that run the ranks in a container; empty without one."""
    if job.container.name != "pyxis":
        return ""
    mounts = ",".join(m if ":" in m else f"{m}:{m}" for m in job.mounts)
    options = {"image": job.container.image, "mounts": mounts, "workdir": job.code}
    words = [f"--container-{k}={shlex.quote(str(v))}" for k, v in options.items()]
    return " ".join([*words, "--no-container-entrypoint"])


def apptainer(job: Job) -> str:
    """The words before a command that run it in a container; empty without one."""
    if job.container.name != "apptainer":
        return ""
    words = [
        "apptainer",
        "exec",
        *(["--nv"] if job.gpus else []),
        "--bind",
        ",".join(job.mounts),
        "--pwd",
        job.code,
    ]
    return shlex.join([*words, str(job.container.image)])
