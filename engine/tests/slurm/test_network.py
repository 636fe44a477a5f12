"""Nodes whose names resolve only to themselves, or that Slurm knows by other names."""

import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.tests.slurm.login import SMALL, Login, log
from tools.testbed import testbed_config
from tools.testbed.testbed_cluster import Testbed
from tools.testing.weights import info

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]

TWO = ("cluster=slurm", "trainer.nodes=2", "trainer.devices=1", *SMALL)


def set_hosts(testbed: Testbed, node: str, lines: list[str]) -> None:
    """Give a node its own /etc/hosts."""
    file = testbed.dir / "etc" / f"hosts-{node}"
    file.write_text("\n".join(["127.0.0.1 localhost", f"{testbed_config.GATEWAY} login", *lines]) + "\n")
    done = testbed.run(["mount", "--bind", str(file), "/etc/hosts"], node=node)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def debian(testbed_for: Callable[..., Testbed]) -> Testbed:
    """Each node has its own name in /etc/hosts as 127.0.1.1, as Debian's installer writes it."""
    testbed = testbed_for("slurm", nodes=2)
    address = testbed.layout.address
    for own in testbed.nodes:
        others = [f"{address(node)} {node}" for node in testbed.nodes if node != own]
        set_hosts(testbed, own, [f"127.0.1.1 {own}.localdomain {own}", *others])
    return testbed


@pytest.fixture(scope="module")
def renamed(slurm_root: Path) -> Iterator[Testbed]:
    """Slurm's names c1 and c2 are unknown to resolvers. The system has node1 and node2."""

    class Renamed(Testbed):
        def _all_idle(self) -> bool:
            return (
                self.run(["sinfo", "--noheader", "--partition=main", "--format=%D %T"]).stdout == "2 idle\n"
            )

    write = testbed_config._write_slurm

    def write_renamed(layout: testbed_config.Layout) -> None:
        write(layout)
        file = layout.dir / "etc" / "slurm" / "slurm.conf"
        text = file.read_text()
        names = f"c1,c2 NodeHostname={','.join(layout.nodes)} NodeAddr={','.join(map(layout.address, layout.nodes))}"
        file.write_text(re.sub("(?m)^NodeName=\\S+", f"NodeName={names}", text))
        gres = file.with_name("gres.conf")
        gres.write_text(gres.read_text().replace(",".join(layout.nodes), "c1,c2"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testbed_config, "_write_slurm", write_renamed)
        folder = Path(tempfile.mkdtemp(prefix="renamed-", dir=slurm_root))
        testbed = Renamed(folder, nodes=2, share=[slurm_root / "shared"]).up()
    for own in testbed.nodes:
        set_hosts(testbed, own, [f"{testbed.layout.address(own)} {own}"])
    yield testbed
    testbed.down()


METHODS = [
    "launch=srun",
    pytest.param("launch=torchrun", marks=pytest.mark.slow),
    pytest.param("launch=mpirun", marks=pytest.mark.slow),
    pytest.param("strategy=horovod", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow
def test_nodes_that_know_themselves_as_loopback_train_together(
    debian: Testbed, shared_dir: Path, method: str
) -> None:
    run = Login(debian, shared_dir).result(*TWO, method)
    assert info(run)["state"] == "completed" and info(run)["world_size"] == 2, log(run)


@pytest.mark.parametrize("method", [*METHODS, pytest.param("framework=keras", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_nodes_train_whose_names_only_slurm_knows(renamed: Testbed, shared_dir: Path, method: str) -> None:
    run = Login(renamed, shared_dir).result(*TWO, method)
    assert info(run)["state"] == "completed" and info(run)["hosts"] == ["c1", "c2"], log(run)
