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
from pathlib import Path

from train_anywhere.config.paths import absolute, on_node
from train_anywhere.errors import ConfigError
from train_anywhere.files import ROOT
from train_anywhere.slurm.script import begin, units
from train_anywhere.slurm.script.job import Job

TEMPLATES = ROOT / "slurm" / "templates"
"""The outline, which a site edits."""

MACHINERY = Path(__file__).parents[1] / "templates"
"""What the outline includes, by name; a file of the same name beside the outline comes first."""


OUTLINE = 2
"""Version of the outline that fits this engine: its includes and variables. docs/batch-script.md"""

INCLUDES = ("start", "environment", "before_ranks", "ranks", "after_ranks", "at_end")
"""What an outline includes, in this order."""


def render(job: Job) -> str:
    """Return the batch script of `job`.

    Raises:
        ConfigError: a template is missing, or the project's outline does not fit this engine.
    """
    from jinja2 import TemplateError, TemplateNotFound

    refuse_outline(f"{job.cluster.scheduler}.sh.j2")
    try:
        return _render(job)
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


def refuse_outline(name: str) -> None:
    """Raise ConfigError if a project's outline is missing, or was written for another engine."""
    try:
        text = (TEMPLATES / name).read_text()
    except OSError as error:
        raise ConfigError(
            f"{TEMPLATES / name} can't be read ({error.strerror}): git checkout slurm/templates"
        ) from None
    found = re.search(r"\{# outline (\d+)", text)
    if not found or int(found[1]) != OUTLINE:
        version = f"version {found[1]}" if found else "without a version"
        raise ConfigError(
            f"{TEMPLATES / name} is an outline {version}, and this engine needs version {OUTLINE}: merge your changes into that of "
            "the template, see docs/batch-script.md."
        )
    if missing := [one for one in INCLUDES if f'"{one}.sh.j2"' not in text]:
        lines = " ".join(f'{{% include "{one}.sh.j2" %}}' for one in missing)
        raise ConfigError(
            f"{TEMPLATES / name} lacks {lines}: a job needs {', '.join(INCLUDES)}, in this order."
        )


def _render(job: Job) -> str:
    from jinja2 import (
        ChoiceLoader,
        Environment,
        FileSystemBytecodeCache,
        FileSystemLoader,
        PrefixLoader,
        StrictUndefined,
    )

    cache = compiled_templates()
    environment = Environment(
        loader=ChoiceLoader(
            [
                FileSystemLoader(TEMPLATES),
                FileSystemLoader(MACHINERY),
                PrefixLoader({one.name: FileSystemLoader(one.folder()) for one in job.features.all}),
            ]
        ),
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
        python=job.features.python or shlex.quote(job.python),
        gpu_type=f"{c.gpu_type}:" if c.gpu_type else "",
        # of an elastic job the shell knows: it counts who is there before each start of the ranks
        nodes='"$NODES"' if job.elastic else job.nodes,
        world=f'"$((NODES * {job.ranks[0]}))"' if job.elastic else job.world_size,
        there=' --overlap --nodelist="$NODELIST"' if job.elastic else "",
        distribution=distribution(job),
        pyxis=pyxis(job),
        inside=apptainer(job),
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
    """A further line of srun's options that run the ranks in a container; empty without one."""
    if job.container.name != "pyxis":
        return ""
    mounts = ",".join(m if ":" in m else f"{m}:{m}" for m in job.mounts)
    options = {"image": job.container.image, "mounts": mounts, "workdir": job.code}
    words = [f"--container-{k}={shlex.quote(str(v))}" for k, v in options.items()]
    return " \\\n    " + " ".join([*words, "--no-container-entrypoint"])


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
    return f"{shlex.join([*words, str(job.container.image)])} "
