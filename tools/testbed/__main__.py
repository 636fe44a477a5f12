"""The command of the Slurm testbed: python slurm/testbed.py up | shell | run | image | down | kill | boot."""

import argparse
import os
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PROJECT = Path(os.environ.get("TEMPLATE_PROJECT") or TOP)
sys.path[:1] = [str(TOP), str(PROJECT / "engine")]  # in a project without engine/, the installed one

import train_anywhere.commands  # noqa: E402, F401  one message if the Python lacks a package of the engine

# isort: split
from tools.testbed.namespaces import TestbedError  # noqa: E402
from tools.testbed.sites import SITES  # noqa: E402
from tools.testbed.testbed_cluster import Testbed, default_dir  # noqa: E402
from tools.testbed.testbed_config import PACKAGES, can_build, make_image  # noqa: E402
from train_anywhere.errors import REFUSED, ProjectError  # noqa: E402

HOW_TO = """\
Slurm is up: {nodes} with {gres} each, partitions {partitions}.
  export PATH={dir}/bin:$PATH    # use it from this shell: sbatch, srun, squeue, sinfo ...
  python slurm/testbed.py shell{where}           # or a bash on the login node; make slurm-shell
  python slurm/testbed.py kill{where} NODE       # power a node off; boot NODE: on again
  python slurm/testbed.py down{where}            # when done; make slurm-down
Nodes share this machine's files, but each has its own /tmp and /dev/shm."""


def main() -> int:
    """Run the command and return the exit code."""
    arguments = _parser().parse_args()
    try:
        return arguments.verb(arguments) or 0
    except ProjectError as error:
        print(error, file=sys.stderr)
        return REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python slurm/testbed.py", description="A real Slurm with several nodes on one machine."
    )
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--dir", type=Path, default=default_dir(), help="folder of the testbed (%(default)s)")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    up = verbs.add_parser("up", parents=[where], help="start it")
    up.add_argument("--nodes", type=int, default=4, help="compute nodes (%(default)s)")
    up.add_argument("--site", choices=SITES, default="slurm", help="site to imitate (%(default)s)")
    up.add_argument("--accounting", action="store_true", help="full sacct, with slurmdbd and a database")
    up.add_argument("--ssh", action="store_true", help="ssh between the nodes")
    share = "a folder below /tmp that all nodes see"
    up.add_argument("--share", type=Path, action="append", default=[], help=share)
    up.add_argument("--conf", action="append", default=[], help="a line for slurm.conf: MaxArraySize=6")
    root = "a folder with a newer Slurm, see engine/tests/slurm/make_root.sh"
    up.add_argument("--root", default="", help=root)
    up.set_defaults(verb=_up)

    run = verbs.add_parser("run", parents=[where], help="run a command on the login node")
    run.add_argument("--user", help="user of the command, alice or bob (default: root)")
    run.add_argument("--node", help="run it on this node instead")
    run.add_argument("command", nargs="+", metavar="-- COMMAND")
    run.set_defaults(verb=_run)

    image = verbs.add_parser(
        "image", help="make an image folder for --container-image (a stand-in for pyxis)"
    )
    image.add_argument("folder", type=Path)
    image.add_argument("--borrow", type=Path, action="append", default=[], help="show this folder in it")
    image.set_defaults(verb=_image)

    verbs.add_parser("shell", parents=[where], help="a bash on the login node").set_defaults(verb=_shell)
    verbs.add_parser("down", parents=[where], help="stop it").set_defaults(verb=_down)
    for name, verb, text in (("kill", _kill, "power a node off"), ("boot", _boot, "power it on again")):
        node = verbs.add_parser(name, parents=[where], help=text)
        node.add_argument("node")
        node.set_defaults(verb=verb)
    return parser


def _up(a: argparse.Namespace) -> None:
    conf = "\n".join(a.conf)
    testbed = Testbed(a.dir, a.nodes, a.site, a.accounting, a.ssh, a.share, True, conf, a.root).up()
    site = testbed.layout.site
    where = f" --dir {a.dir}" if a.dir != default_dir() else ""
    nodes = ", ".join(testbed.nodes)
    partitions = ", ".join((*site.partitions, "scavenge", "preemptible", "urgent"))
    print(HOW_TO.format(dir=testbed.dir, nodes=nodes, gres=site.gres, partitions=partitions, where=where))
    if not a.root and not can_build():
        print(f"Without --container-image: apt-get install -y {PACKAGES}, then down and up again.")


def _run(a: argparse.Namespace) -> None:
    testbed = Testbed.attach(a.dir)
    words = testbed.command(a.command, a.user, a.node)
    os.execvpe(words[0], words, testbed.env_inside())


def _image(a: argparse.Namespace) -> None:
    if a.folder.exists():
        raise TestbedError(f"{a.folder} exists already: give the image a new folder")
    make_image(a.folder, a.borrow)


def _shell(a: argparse.Namespace) -> None:
    testbed = Testbed.attach(a.dir)
    prompt = {"PS1": rf"(slurm testbed: {testbed.site}) \u@\h:\w\$ "}
    words = testbed.command(["bash", "--norc", "-i"])
    os.execvpe(words[0], words, testbed.env_inside() | prompt)


def _down(a: argparse.Namespace) -> None:
    Testbed.attach(a.dir).down()


def _kill(a: argparse.Namespace) -> None:
    Testbed.attach(a.dir).kill_node(a.node)


def _boot(a: argparse.Namespace) -> None:
    Testbed.attach(a.dir).boot_node(a.node)


if __name__ == "__main__":
    os.environ.pop("TEMPLATE_PROJECT", None)  # a shell of the testbed does not inherit it
    sys.exit(main())
