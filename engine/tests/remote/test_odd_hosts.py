"""Hosts with another login shell, a profile that prints, without rsync, or with a home that runs no programs."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.remote.conftest import Laptop, Site
from engine.tests.remote.test_transfers import quick, send

pytestmark = [pytest.mark.git, pytest.mark.new_process]
__all__ = ["quick"]

SHELLS = [name for name in ("bash", "dash", "tcsh", "fish", "zsh") if shutil.which(name)]
"""Login shells that this machine has."""


def host_of(site_for: Callable[..., Site], shell: str, **options: str) -> Site:
    """Return a host with a user whose login shell is `shell`, and whose home is the host's folder."""
    first = (
        f'printf "eve:x:0:0::$PWD:{shutil.which(shell)}\\n" | cat /etc/passwd - > passwd && '
        "mount --bind passwd /etc/passwd"
    )
    return site_for(first=first, user="eve", **options)


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_any_login_shell_that_prints_a_greeting(
    quick: Laptop, site_for: Callable[..., Site], shell: str
) -> None:
    site = host_of(site_for, shell)
    quick.knows("odd", site, folder="~/my jobs/ü's")
    greeting = 'echo "Welcome! @folder /etc"\n'
    for name in (".profile", ".bash_profile", ".zprofile", ".login"):
        (site.home / name).write_text(greeting)
    (quick.project / "src" / "quick.py").write_text(
        "import json, os, sys\nprint(json.dumps([sys.argv[1:], os.getcwd()]))\n"
    )
    words = ["a b", "x='q\"$HOME`id`\\", "größe\n2", "!x *?[a] ~ # ; & | <>", ""]
    done = quick.command("here", "on=odd", *words)
    assert done.returncode == 0, done.stderr
    assert eval(done.stdout) == [words, f"{site.home}/my jobs/ü's"]
    (quick.project / "src" / "quick.py").write_text("print(1)\n")
    assert "src/quick.py" in send(quick, "on=odd")
    listed = quick.command("jobs", "list", "--on", "odd", "--json")
    assert listed.stdout == "" and "error: there is no run in" in listed.stderr, listed


def test_a_shell_that_prints_before_each_command_is_named(
    quick: Laptop, site_for: Callable[..., Site]
) -> None:
    site = host_of(site_for, "bash")
    quick.knows("odd", site)
    (site.home / ".bashrc").write_text("echo Welcome\n")
    assert "your login shell on odd prints something" in send(quick, "on=odd", code=2)


@pytest.mark.slow
def test_a_host_without_rsync_is_named(quick: Laptop, site_for: Callable[..., Site], tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in os.listdir("/usr/bin"):
        if name != "rsync":
            (programs / name).symlink_to(f"/usr/bin/{name}")
    site = host_of(site_for, "bash", environment=f"PATH={programs}")
    quick.knows("odd", site)
    assert "odd has no rsync" in send(quick, "on=odd", code=2)


@pytest.mark.slow
def test_a_python_that_is_too_old(quick: Laptop, site: Site) -> None:
    old = site.home / "old"
    old.write_text(f'#!/bin/sh\n[ "$1" = -SEc ] && exit 1\nexec {sys.executable} "$@"\n')
    old.chmod(0o755)
    quick.knows("old", site, python=old, setup=None)
    assert "it needs 3.11 or newer" in send(quick, "on=old", code=2)


@pytest.mark.slow
def test_a_folder_that_runs_no_programs(quick: Laptop, site_for: Callable[..., Site]) -> None:
    site = site_for(first="mkdir jobs && mount -t tmpfs -o noexec none jobs")
    setup = "printf '#!/bin/sh\\n' > py && chmod +x py && ./py"
    quick.knows("odd", site, python="./py", setup=setup)
    err = send(quick, "on=odd", code=2)
    assert "failed on odd, see above" in err and "Permission denied" in err
    quick.knows("odd", site, python="./py", setup=None)
    assert "odd has no Python at ./py" in send(quick, "on=odd", code=2)


def test_a_login_that_is_closed_says_so(quick: Laptop, site_for: Callable[..., Site]) -> None:
    site = host_of(site_for, "bash")
    quick.knows("odd", site)
    (site.home / "passwd").write_text(
        (site.home / "passwd").read_text().replace(f":{shutil.which('bash')}\n", ":/usr/sbin/nologin\n")
    )
    assert "This account is currently not available" in send(quick, "on=odd", code=2)
