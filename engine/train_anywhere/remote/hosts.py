"""Remote machines: configs/hosts/NAME.yaml."""

import re
import shlex
from dataclasses import dataclass, field, replace

from train_anywhere.config.command.yaml_files import read_mapping
from train_anywhere.config.strict import build, did_you_mean
from train_anywhere.errors import ConfigError, listed
from train_anywhere.files import OWN

HOSTS = OWN / "hosts"


@dataclass(frozen=True)
class Host:
    """A remote machine.

    Attributes:
        ssh: the host as `ssh` takes it: an alias of ~/.ssh/config, or user@host.
        folder: the project's folder there. `~` and $NAME are those of the host, {branch} is the current branch.
        cluster: the preset for commands without `cluster=`; None adds nothing.
        python: the Python of the project there, by name or by path; a relative path is below the folder.
        setup: command that makes it, run again when the requirements change; None: nothing has to be made.
        modules: environment modules that are loaded first.
        conda: conda environment that is activated.
        name: name of the file.
    """

    ssh: str
    folder: str
    cluster: str | None = None
    python: str = ".venv/bin/python"
    setup: str | None = "make setup WHEELS=gpu"
    modules: list[str] = field(default_factory=list)
    conda: str | None = None
    name: str = ""

    def activation(self) -> list[str]:
        """Return lines of bash that load the modules and activate the conda environment."""
        lines = [f"module load {shlex.quote(name)}" for name in self.modules]
        if self.conda:
            lines.append(
                f'source "$(conda info --base)/etc/profile.d/conda.sh" && conda activate {shlex.quote(self.conda)}'
            )
        return [f"{line} || {refusal(f'`{line}` failed on {self.name}.')}" for line in lines]


def read_host(name: str) -> Host:
    """Return a host. Raises ConfigError for an unknown one and for a wrong file."""
    if name not in (known := sorted(path.stem for path in HOSTS.glob("*.yaml"))):
        have = f"configs/hosts/ has {listed(known)}" if known else "configs/hosts/ has none"
        raise ConfigError(
            f"'{name}' is not a host ({have}){did_you_mean(name, known)} `python slurm/new_cluster.py NAME --on SSH_HOST` "
            "writes the file of a new one."
        )
    problems: list[str] = []
    host = build(Host, read_mapping(HOSTS / f"{name}.yaml"), problems, f"hosts/{name}")
    if host and not re.fullmatch(r"[^\s-]\S*", host.ssh):
        problems.append(f"hosts/{name}.ssh={host.ssh} is not a host of ssh, such as an alias or user@host.")
    if host and not (host.folder.strip() and host.python.strip()):
        problems.append(f"hosts/{name}: `folder:` or `python:` is empty; name a path there.")
    if host is None or problems:
        raise ConfigError(*problems)
    return replace(host, name=name)


def shell_path(path: str) -> str:
    """Return a word of bash for a path in which only a leading `~` and $NAME have a meaning; an unset name is an error."""
    head, rest = ('"$HOME"', path[1:]) if re.match(r"~(/|$)", path) else ("", path)
    parts = re.split(r"\$(?:(\w+)|\{(\w+)\})", rest)
    words = [shlex.quote(parts[0]) if parts[0] else ""]
    for bare, braced, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        value = f'"${{{bare or braced}:?is not set there, and a path of this host has it}}"'
        words.append(value + (text and shlex.quote(text)))
    return head + "".join(words)


def refusal(message: str) -> str:
    """Return a command of bash that prints an error and exits with code 2."""
    return f"{{ echo {shlex.quote(f'error: {message}')} >&2; exit 2; }}"
