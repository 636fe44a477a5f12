"""Hosts with another login shell, a profile that prints, without rsync, or with a home that runs no programs."""

import os
import shutil
import tempfile
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
def test_any_login_shell_that_prints_a_greeting(quick, site_for, shell):
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


def test_a_shell_that_prints_before_each_command_is_named(quick, site_for):
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


def test_a_login_that_is_closed_says_so(quick: Laptop, site_for: Callable[..., Site]) -> None:
    site = host_of(site_for, "bash")
    quick.knows("odd", site)
    (site.home / "passwd").write_text(
        (site.home / "passwd").read_text().replace(f":{shutil.which('bash')}\n", ":/usr/sbin/nologin\n")
    )
    assert "This account is currently not available" in send(quick, "on=odd", code=2)


USERS = r"""
mount --bind "$PWD" /mnt && mount -t tmpfs none "$TEMPORARY" && mkdir -p "$PWD" && mount --bind /mnt "$PWD" && cd "$PWD"
printf 'bob:x:2001:2001::%s/bob:/bin/bash\nalice:x:2002:2002::%s/alice:/bin/bash\n' "$PWD" "$PWD" | cat /etc/passwd - > passwd
printf 'bob:x:2001:\nalice:x:2002:\nteam:x:2100:bob,alice\n' | cat /etc/group - > group
mount --bind passwd /etc/passwd && mount --bind group /etc/group
mkdir bob alice team
chown 2001:2001 bob && chown 2002:2002 alice && chown 2002:2100 team
chmod 700 bob alice && chmod 2775 team && chmod 1777 tmp
"""
"""Commands that make two users without rights, their homes, and a folder of a group that both are in.

Pytest lets no other user into its folders, so there is another way to that of the host.
"""


@pytest.fixture
def shared_site(site_for: Callable[..., Site]) -> Site:
    """A host with several users, of whom bob logs in."""
    users = USERS.replace("$TEMPORARY", tempfile.gettempdir())
    site = site_for(first=f"{{ {users}}}", user="bob")
    python = site.home / "python"
    python.write_text("#!/bin/sh\necho done\n")
    python.chmod(0o755)
    return site


def test_a_user_without_rights_sends_with_the_umask_and_group_of_the_host(quick, shared_site):
    (quick.project / "src" / "tool").write_text("#!/bin/sh\n")
    (quick.project / "src" / "tool").chmod(0o755)
    bob, team = shared_site.home / "bob", shared_site.home / "team"
    (bob / ".bashrc").write_text("umask 077\n")
    (bob / "mine").mkdir()
    os.chown(bob / "mine", 2001, 2001)
    quick.knows("odd", shared_site, folder="~/mine", python=shared_site.home / "python")
    send(quick, "on=odd")
    modes = {name: (bob / "mine" / name).stat().st_mode & 0o777 for name in ("README.md", "src", "src/tool")}
    assert modes == {"README.md": 0o600, "src": 0o700, "src/tool": 0o700}
    (quick.project / "src" / "tool").chmod(0o644)
    send(quick, "on=odd")
    assert (bob / "mine" / "src" / "tool").stat().st_mode & 0o777 == 0o600
    (bob / ".bashrc").write_text("umask 002\n")
    quick.knows("odd", shared_site, folder=team / "project", python=shared_site.home / "python")
    send(quick, "on=odd")
    for name, mode in {"src": 0o2775, "src/quick.py": 0o644, ".remote": 0o2775}.items():
        status = (team / "project" / name).stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (2001, 2100, mode), name


def test_folders_of_someone_else_are_one_message(quick: Laptop, shared_site: Site) -> None:
    home = shared_site.home
    python = home / "python"
    for folder in (home / "alice" / "x", home / "alice", "/srv/x"):
        quick.knows("odd", shared_site, folder=folder, python=python)
        assert f"error: {folder} on odd: " in send(quick, "on=odd", code=2)
    quick.knows("odd", shared_site, folder=home / "team" / "x", python=python)
    send(quick, "on=odd")
    for name in ("src", ".remote"):
        os.chown(home / "team" / "x" / name, 2002, 2100)
        (home / "team" / "x" / name).chmod(0o755)
        (quick.project / "src" / f"new{name}.py").write_text("a = 1\n")
        assert "Permission denied" in send(quick, "on=odd", code=2)
        (home / "team" / "x" / name).chmod(0o2775)
    assert not [*(home / "alice").iterdir()]
