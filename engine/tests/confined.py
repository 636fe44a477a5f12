"""Run a command that can write to only one folder, so that wrong removals lose nothing.

python engine/tests/confined.py SCRATCH COMMAND...

Needs root. Exit code 97: another folder could be written, and the command was not started.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

INSIDE = r"""
set -eu
scratch=$1; shift
mount --bind "$scratch" "$scratch"
points=$(awk '{print $5}' /proc/self/mountinfo)
printf '%s\n' "$points" | while read -r point; do
    point=$(printf %b "$point")
    case "$point" in
        "$scratch" | "$scratch"/*) ;;
        *) mount -o remount,ro,bind "$point" ;;
    esac
done
printf '%s\n' "$points" / /etc /root /home /usr /var /tmp /var/tmp /dev/shm /work "${HOME:-/}" "${scratch%/*}" |
    while read -r folder; do
        folder=$(printf %b "$folder")
        case "$folder" in "$scratch" | "$scratch"/*) continue ;; esac
        if [ -d "$folder" ] && touch "$folder/.confined-$$" 2>/dev/null; then
            rm -f "$folder/.confined-$$"
            echo "$folder can be written: not confined" >&2
            exit 97
        fi
    done || exit 97
cd "$scratch"
touch .confined && rm .confined
exec "$@"
"""


def confined(
    scratch: Path, command: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Return the output and exit code of a command that could write only below `scratch`."""
    inside = ["unshare", "--mount", "--propagation", "private", "bash", "-c", INSIDE, "confined"]
    return subprocess.run(
        [*inside, str(scratch.resolve()), *command], capture_output=True, text=True, env=env, timeout=timeout
    )


def works(scratch: Path) -> bool:
    """Return whether this machine can confine commands."""
    probe = f"touch {scratch}/inside && ! touch {scratch.parent}/outside && ! touch /etc/outside && ! touch /root/outside"
    try:
        return confined(scratch, ["bash", "-c", f"{probe} 2>/dev/null"]).returncode == 0
    except FileNotFoundError:  # no unshare
        return False


if __name__ == "__main__":
    done = confined(Path(sys.argv[1]), sys.argv[2:])
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    sys.exit(done.returncode)
