"""Run a command as on a machine where some tools are not installed. Needs root and Debian.

python engine/tests/without.py SCRATCH horovod,slurm,mpi,root COMMAND...

A tool is one of `GROUPS`, `horovod`, `root` (the command then runs as a user without rights), or the name of a Debian package.
Nothing is removed: the folders of programs, of Python packages and of this project are overlaid, in a mount namespace of the command.
What the command writes to them is gone with it.
"""

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "engine"))

from engine.tests.confined import confined
from train_anywhere.files import ROOT

GROUPS = {"slurm": ("slurm*", "munge"), "mpi": ("openmpi-bin*", "libopenmpi-dev*")}
"""Names of Debian packages, with wildcards."""

PROGRAMS = ("/usr/bin", "/usr/sbin")
NOBODY = 65534

HIDE = r"""
set -eu
layers=$1 folders=$2 hidden=$3 owner=$4; shift 4
project=$1; shift
mkdir "$layers"
mount -t tmpfs -o mode=755 none "$layers"
mount -t tmpfs -o mode=1777 none /dev/shm
case "$project" in /tmp/*) ;; *) mount --bind "$TMPDIR" /tmp ;; esac
number=0
while read -r folder; do
    number=$((number + 1))
    mkdir -p "$layers/$number/up" "$layers/$number/work"
    mount -t overlay overlay -o "lowerdir=$folder,upperdir=$layers/$number/up,workdir=$layers/$number/work" "$folder"
done <<<"$folders"
while read -r path; do [ -z "$path" ] || rm -rf "$path"; done <<<"$hidden"
find "$project" -path "$project/.venv" -prune -o -type d -exec chown "$owner" {} +
cd "$project"
[ "$owner" != 0 ] || exec "$@"
exec setpriv --reuid="$owner" --regid="$owner" --clear-groups --inh-caps=-all --bounding-set=-all "$@"
"""


def without(
    scratch: Path, tools: Sequence[str], command: Sequence[str], timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    """Return output and exit code of a command that can write only below `scratch`."""
    plain = "root" in tools
    for name in ("home", "tmp"):
        (scratch / name).mkdir(exist_ok=True)
    if plain:
        subprocess.run(["chown", "-Rh", f"{NOBODY}:{NOBODY}", str(scratch)], check=True)
    closed = [p for p in ways() if plain and not p.stat().st_mode & 1]
    packed = {p.parent for p in horovod() if "horovod" in tools}
    changed = {*closed, ROOT, *map(Path, PROGRAMS), *packed}
    folders = sorted(p for p in changed if changed.isdisjoint(p.parents))
    hidden = [str(p) for p in horovod() if "horovod" in tools] + programs(packages(tools))
    words = [
        str(scratch / "layers"), "\n".join(map(str, folders)), "\n".join(hidden), str(NOBODY * plain), str(ROOT),
    ]  # fmt: skip
    env = {k: v for k, v in os.environ.items() if k != "CI" and not k.startswith(("PYTEST_", "XDG_"))}
    env |= {"HOME": str(scratch / "home"), "TMPDIR": str(scratch / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"}
    return confined(scratch, ["bash", "-c", HIDE, "without", *words, *command], env, timeout)


def ways() -> list[Path]:
    """Return the folders that lead to this project and to this Python, the outermost first."""
    ends = map(Path, (ROOT, sys.prefix, sys.base_prefix))
    return sorted({p for end in ends for way in (end, end.resolve()) for p in (way, *way.parents)})


def horovod() -> list[Path]:
    """Return the files of Horovod in this environment."""
    paths = sysconfig.get_paths()
    return [
        *Path(paths["purelib"]).resolve().glob("horovod*"),
        *Path(paths["scripts"]).resolve().glob("horovod*"),
    ]


def packages(tools: Sequence[str]) -> list[str]:
    """Return the installed Debian packages that the tools are made of."""
    wanted = [name for tool in tools if tool not in ("horovod", "root") for name in GROUPS.get(tool, (tool,))]
    query = ["dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package}\n", *wanted]
    shown = subprocess.run(query, capture_output=True, text=True).stdout if wanted else ""
    return re.findall(r"^ii +(\S+)$", shown, re.MULTILINE)


def programs(names: Sequence[str]) -> list[str]:
    """Return the programs of Debian packages."""
    shown = subprocess.run(["dpkg", "-L", *names], capture_output=True, text=True).stdout if names else ""
    return re.findall(r"^(?:/usr)?/s?bin/[^/\n]+$", shown, re.MULTILINE)


if __name__ == "__main__":
    done = without(Path(sys.argv[1]).resolve(), sys.argv[2].split(","), sys.argv[3:], timeout=7200)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    sys.exit(done.returncode)
