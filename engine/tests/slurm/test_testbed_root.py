"""A testbed with the programs of another folder, and how such a folder is made."""

import os
from pathlib import Path

import pytest

from engine.tests.confined import confined
from tools.testbed.namespaces import TestbedError
from tools.testbed.testbed_cluster import Testbed

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]

MAKE_ROOT = Path(__file__).with_name("make_root.sh")
APT_GET = """#!/bin/sh
echo file:/first; echo file:/second
"""
DEBOOTSTRAP = """#!/bin/sh
folder=$4  # --variant --include suite folder mirror
mkdir -p "$folder/etc" "$folder/var/cache/apt/archives"
ln -s /etc/hosts "$folder/etc/localtime"
[ ! -e "$folder/left" ] || echo "the folder is not new" >> {calls}
echo x >> {calls}
mount -t tmpfs none "$folder/var"
[ "$(wc -l < {calls})" -ge {good} ] || {{ touch "$folder/left"; echo "E: no network" >&2; exit 1; }}
sleep 0.5
umount "$folder/var"
"""
"""Leaves its mount and an unfinished folder behind until it was called `good` times."""


class Maker:
    """Makers of a folder whose debootstrap works from its n-th call on, confined to `scratch`."""

    def __init__(self, scratch: Path) -> None:
        self.scratch, self.folder, self.calls = scratch, scratch / "cache/root", scratch / "calls"
        (scratch / "bin").mkdir()
        self.program("sleep", "#!/bin/sh\n")
        self.program("apt-get", APT_GET)
        self.works_from(1)

    def program(self, name: str, text: str) -> None:
        """Put a program first on PATH."""
        (self.scratch / "bin" / name).write_text(text)
        (self.scratch / "bin" / name).chmod(0o755)

    def works_from(self, good: int) -> None:
        """Let debootstrap work from this call on."""
        self.program("debootstrap", DEBOOTSTRAP.format(calls=self.calls, good=good))

    def make(self, before: str = ":", bash: str = "bash") -> str:
        """Return what is printed as an error, "" if the folder is there then."""
        script = f'{before}; {bash} "$@"; code=$?; ! grep .part /proc/self/mountinfo || exit 9; exit $code'
        environ = ["env", f"PATH={self.scratch}/bin:{os.environ['PATH']}"]
        words = [*environ, "bash", "-c", script, "bash", str(MAKE_ROOT), str(self.folder)]
        done = confined(self.scratch, words)
        assert (done.returncode == 0) == self.folder.exists() == (done.stderr == ""), done
        return done.stderr.strip()


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


def test_a_folder_is_made_once_however_many_ask_for_it(maker: Maker) -> None:
    assert maker.make(before='bash "$@" & bash "$@" & true') == ""
    assert maker.calls.read_text() == "x\n"
    assert (maker.folder / "etc/localtime").read_bytes() == Path("/etc/localtime").read_bytes()


def test_a_failure_is_tried_again_in_a_new_folder(maker: Maker) -> None:
    maker.works_from(3)
    part = maker.folder.with_name("root.part")
    part.mkdir(parents=True)
    (part / "left").touch()  # by a process that was killed
    assert maker.make() == ""
    assert maker.calls.read_text() == "x\n" * 3
    assert not (maker.folder / "left").exists() and not part.exists()


def test_a_folder_that_could_not_be_made_is_not_there(maker: Maker) -> None:
    maker.works_from(1000)
    assert maker.make() == f"{maker.folder} can't be made: E: no network"
    assert maker.calls.read_text() == "x\n" * 6
    assert {path.name for path in maker.folder.parent.iterdir()} == {"root.lock", "root.log"}
    maker.works_from(1)
    assert maker.make() == ""


def test_what_is_missing_is_said_with_what_to_type(maker: Maker, tmp_path: Path) -> None:
    maker.program("apt-get", "#!/bin/sh\n")
    assert maker.make().endswith(": apt knows no mirror of Debian here: apt-get update")
    (tmp_path / "bin/debootstrap").unlink()
    assert maker.make("mount -t tmpfs none /usr/sbin").endswith(": apt-get install -y debootstrap")
    assert maker.make(bash="setpriv --reuid 65534 bash").endswith(": run the same command with sudo")
    with pytest.raises(TestbedError, match=f"bash engine/tests/slurm/make_root.sh {tmp_path}/new makes one"):
        Testbed(tmp_path / "testbed", root=tmp_path / "new").up()
    (tmp_path / "empty/etc").mkdir(parents=True)
    with pytest.raises(TestbedError, match=f"chroot {tmp_path}/empty apt-get install -y iproute2 munge"):
        Testbed(tmp_path / "testbed", root=tmp_path / "empty").up()
