"""The testbed from outside: its command line, its folder, what it needs, how it ends."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.testbed.namespaces import TestbedError
from tools.testbed.testbed_cluster import REPOSITORY, Testbed
from tools.testing.processes import run_python, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]


def test_its_folder_may_have_a_long_path(tmp_path: Path) -> None:
    with Testbed(tmp_path / ("long-" * 20) / "testbed", nodes=1) as testbed:
        done = testbed.run(["srun", "hostname"])
        assert done.stdout == "node1\n", done.stderr


LINEAR = """\
SelectType=select/linear
selecttypeparameters=CR_Memory
MaxArraySize=6
NodeName=n[008-009] NodeHostname=node[1-2] CPUs=4 RealMemory=8000 Gres=gpu:8
PartitionName=main Default=YES PriorityTier=10 MaxNodes=1
"""


def test_lines_for_slurm_conf_take_the_place_of_those_that_set_the_same(tmp_path: Path) -> None:
    with Testbed(tmp_path / "testbed", nodes=2, conf=LINEAR) as testbed:
        shown = testbed.run(["scontrol", "show", "config"])
        assert re.findall(r"(?:SelectType|MaxArraySize) .*= (\S+)", shown.stdout) == ["6", "select/linear"]
        assert shown.stderr == ""
        assert testbed.run(["sinfo", "--noheader", "--format=%P %l %N"]).stdout.count("n[008-009]") > 10
        named = testbed.run(["srun", "--partition=gpu", "--nodes=2", "printenv", "SLURMD_NODENAME"])
        assert sorted(named.stdout.split()) == ["n008", "n009"]
        assert testbed.run(["srun", "--nodes=2", "true"]).returncode != 0  # MaxNodes of the partition
        assert testbed.layout == Testbed.attach(testbed.dir).layout


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import sys; from tools.testbed.testbed_cluster import Testbed\nTestbed(sys.argv[1], nodes=1).up()\n"
    )
    words = [sys.executable, "-u", "-c", code + "print('up'); input()", str(tmp_path / "t")]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=REPOSITORY, stdin=pipe, stdout=pipe) as owner:
        assert owner.stdout and owner.stdout.readline() == b"up\n"
        testbed = Testbed.attach(tmp_path / "t")
        assert testbed.is_up()
        owner.kill()
    wait_until(lambda: not testbed.is_up())


def test_command_line(tmp_path: Path) -> None:
    def cli(*words: str) -> subprocess.CompletedProcess[str]:
        return run_python(
            "slurm/testbed.py", words[0], "--dir", str(tmp_path / "t"), *words[1:], cwd=REPOSITORY
        )

    refused = cli("shell")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    try:
        up = cli("up", "--nodes", "2", "--site", "alvis")
        assert up.returncode == 0, up.stderr
        assert f"export PATH={tmp_path}/t/bin:$PATH" in up.stdout
        assert "is already up in" in cli("up").stderr
        assert cli("kill", "alvis3-02").returncode == 0
        assert cli("run", "--node", "alvis3-02", "--", "true").stderr == "alvis3-02 is off: boot it\n"
        assert "use one of alvis3-01, alvis3-02" in cli("boot", "node9").stderr
        assert cli("boot", "alvis3-02").returncode == 0
        assert cli("run", "--user", "bob", "--node", "alvis3-02", "--", "whoami").stdout == "bob\n"
    finally:
        assert cli("down").returncode == 0
    assert "no testbed is up" in cli("run", "true").stderr


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(TestbedError, match="not empty"):
        Testbed(tmp_path).up()
    assert (tmp_path / "thesis.tex").exists()


def test_without_root_it_says_so(tmp_path: Path) -> None:
    words = [
        "runuser", "-u", "nobody", "--", "env", f"PYTHONPATH={REPOSITORY}:{REPOSITORY}/engine", f"TRAIN_ROOT={REPOSITORY}", "python3",
        "-c",
    ]  # fmt: skip
    code = "from tools.testbed.testbed_config import describe_missing; print(describe_missing())"
    done = subprocess.run([*words, code], capture_output=True, text=True, cwd="/")
    assert "needs root" in done.stdout, done.stderr
