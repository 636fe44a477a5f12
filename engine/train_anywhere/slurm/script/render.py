"""Render the batch script of a job. The same job always gives the same script.

The templates are shell scripts with placeholders; those of the project's `slurm/templates` win. Every value from the user passes a filter:
`sh` for the shell, `option` for a line that the scheduler reads.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from train_anywhere.config.paths import is_on_node, make_absolute
from train_anywhere.distributed.topology import ranges
from train_anywhere.errors import ConfigError
from train_anywhere.files import ROOT
from train_anywhere.files.root import BARE
from train_anywhere.slurm.script import units
from train_anywhere.slurm.script.job import Job

TEMPLATES = ROOT / "slurm" / "templates"
"""The project's templates, with the outline of the script, which users may edit."""

OURS = BARE / "slurm" / "templates"
"""Templates for what the project's folder lacks."""

OUTLINE = 3
"""Version of the outline, its includes and variables, that this engine needs: docs/how-to/batch-script.md."""

INCLUDES = ("environment", "ranks")
"""Templates that an outline must include, in this order."""

TABLE = Path(__file__).with_name("options.txt")
"""For each option its letter for sbatch and for qsub, its kind, and the key to use instead, or why it can't be used.

line    the script has a line with the value of the key
part    the script has such a line, which its outline composes
own     the script sets it from other keys, or it could contradict one that the script sets
no      it submits no job, or one that src/jobs.py can't find
ask     its value decides
"""


class Option(NamedTuple):
    """A row of `TABLE`."""

    name: str
    letter: str
    qsub: str
    kind: str
    text: str = ""


OPTIONS = {row.split()[0]: Option(*row.split(maxsplit=4)) for row in TABLE.read_text().splitlines()}
SHORT = {o.letter: o.name for o in OPTIONS.values() if o.letter != "-"}
"""Long names of the short options: https://slurm.schedmd.com/sbatch.html"""

OWN_PBS = {o.qsub: o.text for o in OPTIONS.values() if o.qsub != "-"} | dict.fromkeys("IhzCS", "")
"""Options of qsub that the script sets itself or can't work with, and the key to use instead; "" if there is none."""


def render(job: Job) -> str:
    """Return the batch script of `job`. Raises ConfigError for a missing template or an unfit outline."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError, TemplateNotFound

    environment = Environment(
        loader=FileSystemLoader([TEMPLATES, OURS]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters = (option, variable, folder, units.clock, units.seconds, units.short_size, units.megabytes)
    environment.filters |= {function.__name__: function for function in filters}
    environment.filters |= {"sh": shlex.quote, "members": ranges, "pbs_time": units.to_qsub}
    name = f"{job.cluster.scheduler}.sh.j2"
    check_outline(name)
    try:
        return environment.get_template(name).render(_values(job))
    except TemplateNotFound as error:
        raise ConfigError(
            f"{error.name} is included by {TEMPLATES}, and is neither there nor in the engine: git checkout slurm/templates, or correct "
            "the include."
        ) from None
    except TemplateError as error:
        where = getattr(error, "filename", None) or TEMPLATES
        raise ConfigError(
            f"{where}: {error}; correct the template, or git checkout slurm/templates."
        ) from None


def _values(job: Job) -> dict[str, object]:
    """Return the variables of the templates."""
    c = job.cluster
    # in an allocation the ranks may use only some of its nodes, and srun would take any
    chosen = ' --nodelist="$SLURM_JOB_NODELIST"' if c.nodelist else ""
    # the variables of the other ways to request GPUs
    gpu_variables = ["SLURM_GPUS"] if job.even or c.gpu_request == "none" else []
    gpu_variables += [] if job.even and c.gpu_request == "gpus-per-node" else ["SLURM_GPUS_PER_NODE"]
    values = {**vars(c), "constraint": job.constraint}
    keys = {o.name: o.text.removeprefix("cluster.") for o in OPTIONS.values() if o.kind == "line"}
    name, inside = job.container.name, (str(job.container.image), job.mounts, job.code)
    pyxis = pyxis_options(*inside) if name == "pyxis" else ""
    apptainer = apptainer_command(*inside, job.gpus) if name == "apptainer" else ""
    sockets = re.search(r"(?:^| )(?:--distribution[= ]|-m ?)[\w*]+(:[\w*:]+)", " ".join(c.extra))
    return {
        # outlines of projects list the numbers of the array as the members of a job
        "job": replace(job, members=job.members and job.array),
        "c": c,
        "login": bool(c.modules or c.conda),  # only login shells have `module` and `conda`
        "log": log_path(job),
        "python": shlex.quote(job.python),
        # the options that have a key of `cluster` as their value, and True for one without a value
        "lines": [(name, v) for name, key in keys.items() if (v := values[key]) not in (None, False, "")],
        "gpu_type": f"{c.gpu_type}:" if c.gpu_type else "",
        "gpu_variables": " ".join(gpu_variables),
        # the supervisor counts the nodes of an elastic job before each start of the ranks
        "nodes": "{nodes}" if job.elastic else job.nodes,
        "world": "{ranks}" if job.elastic else job.world_size,
        "there": " --overlap --nodelist={nodelist}" if job.elastic else chosen,
        "distribution": f"block{sockets[1] if sockets else ''}",  # node by node in the order of TRAIN_HOSTS
        "pyxis": f" \\\n    {pyxis}" if pyxis else "",
        "inside": f"{apptainer} " if apptainer else "",
        "supervisor": job.supervisor,
        "job_options": job_options(job),
        "supervised": ranks_options(job, pyxis, apptainer),
    }


def check_outline(name: str) -> str:
    """Return the text of the project's outline. Raises ConfigError if it does not fit."""
    try:
        text = find_template(name).read_text()
    except OSError as error:
        raise ConfigError(
            f"{TEMPLATES / name} can't be read ({error.strerror}): git checkout slurm/templates"
        ) from None
    found = re.search(r"\{# outline (\d+)", text)
    if not found or int(found[1]) != OUTLINE:
        version = f"version {found[1]}" if found else "without a version"
        raise ConfigError(
            f"{TEMPLATES / name} is an outline {version}, but this engine needs version {OUTLINE}: merge your changes into the "
            "outline of the template, see docs/how-to/batch-script.md."
        )
    if missing := [one for one in INCLUDES if f'"{one}.sh.j2"' not in text]:
        lines = " ".join(f'{{% include "{one}.sh.j2" %}}' for one in missing)
        raise ConfigError(
            f"{TEMPLATES / name} lacks {lines}: a job needs {', '.join(INCLUDES)}, in this order."
        )
    return text


def find_template(name: str) -> Path:
    """Return the path of the project's template, or of the engine's if the project does not have one."""
    return TEMPLATES / name if os.path.lexists(TEMPLATES / name) else OURS / name


def job_options(job: Job) -> str:
    """Return the supervisor's options about the job, needed even if the ranks can't start."""
    c = job.cluster
    options = {
        "--requeue": c.requeue and c.scheduler == "slurm",
        "--exclude": c.exclude,
        "--array": job.members is not None,
        "--members": job.pack if job.pack > 1 else None,
        "--last": job.members[-1] if job.members and job.pack > 1 else None,
        "--signal-seconds": c.signal_seconds if c.scheduler == "slurm" else None,
    }
    return "".join(f" {words}" for words in _options(options))


def ranks_options(job: Job, pyxis: str, apptainer: str) -> str:
    """Return the supervisor's options about the ranks and their container, see `job/__main__.py`."""
    c, lines = job.cluster, re.findall(r"\bexport\s+([^;]*)", "; ".join(job.cluster.setup))
    names = [name for words in lines for name in re.findall(r"(?:^|\s)([A-Za-z_]\w*)", words)]
    exported = dict.fromkeys([*names, *job.features.variables])
    options = {
        "--launch": job.launch if job.launch != "srun" else None,
        "--ranks": job.ranks[0] if job.even and job.ranks[0] > 1 else None,
        "--uneven": None if job.even or c.scheduler == "pbs" else job.world_size,
        "--cpus-per-task": job.cpus_per_task if job.elastic or not job.even or job.pack > 1 else None,
        "--gpus": sum(job.devices) if job.gpus and not job.even and c.gpu_request != "none" else None,
        "--fewest": job.fewest if job.elastic else None,
        "--counts": ranges(job.counts) if job.elastic and len(job.counts) <= job.nodes - job.fewest else None,
        "--no-kill": job.elastic and c.no_kill,
        "--retries": c.retries if "restarts" in job.features else None,
        "--program": bool(job.command),
        "--monitor": job.features.on_node,
        "--features": bool(job.features.supervising),
        "--inside": apptainer,
        "--container": pyxis,
        "--export": ",".join(exported) if job.launch == "mpirun" or pyxis or apptainer else None,
    }
    return " ".join([*_options(options), f"--python={shlex.quote(job.python)}"])


def _options(options: Mapping[str, object]) -> Iterator[str]:
    """Yield the words of options: a flag that is True, others that are not None or empty."""
    for name, value in options.items():
        if value is True:
            yield name
        elif value is not None and value is not False and value != "":  # 0 is a value
            yield f"{name}={shlex.quote(str(value))}"


def log_path(job: Job) -> str:
    """Return the path of the job's log without .out. Slurm fills in %j and %A_%a."""
    escaped, kind = job.run.replace("%", "%%"), job.cluster.scheduler
    return f"{escaped}/{kind}-%j" if job.members is None else f"{escaped}-%a/{kind}-%A_%a"


def option(value: object) -> str:
    """Return a value for a line of options, quoted if needed. Raises ConfigError for a line break."""
    text = str(value)
    if re.search(r"[\n\r\0]", text):
        raise ConfigError(f"{text!r} has a line break in it, which a line of a batch script can't have.")
    if re.fullmatch(r"[\w@%+=:,./&|()\[\]*~^-]*", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def variable(text: str) -> str:
    """Escape a folder for double quotes in the shell: only $NAME stays a variable."""
    return re.sub(r'(["\\`]|\$(?![A-Za-z_]))', r"\\\1", text)


def folder(path: str) -> str:
    """Quote a folder for the shell. One on the node's disk keeps its variable."""
    return f'"{variable(path)}"' if is_on_node(path) else shlex.quote(str(make_absolute(path)))


def pyxis_options(image: str, mounts: Sequence[str], folder: str) -> str:
    """Return srun's options for a container. `folder` is the first folder inside.

    Without container-env a value of the image would replace that of the job: https://github.com/NVIDIA/pyxis#usage
    """
    pairs = ",".join(m if ":" in m else f"{m}:{m}" for m in mounts)
    options = {"image": image, "mounts": pairs, "workdir": folder}
    words = [f"--container-{k}={shlex.quote(v)}" for k, v in options.items()]
    return " ".join([*words, "--container-env={names}", "--no-container-entrypoint"])


def apptainer_command(image: str, mounts: Sequence[str], folder: str, gpus: bool) -> str:
    """Return the words before a command that run it in a container, first in `folder`."""
    words = ["apptainer", "exec", *(["--nv"] if gpus else []), "--bind", ",".join(mounts), "--pwd", folder]
    return shlex.join([*words, image])
