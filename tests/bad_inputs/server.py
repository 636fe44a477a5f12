"""Commands of the project, each in a fork of one process that has imported what they import: 0.1 s a command, not 0.6.

    python server.py PROJECT      one JSON object a line on stdin, one answer a line on stdout; `ready` first

A child starts like a new interpreter: same `sys.path`, `sys.argv`, folder and environment, the script run as
`__main__`, the end left to the interpreter. Everything that a child started is killed when it ends or takes too long.
"""

import gc
import json
import os
import runpy
import select
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

LOADED = (
    "antlr4", "argparse", "difflib", "fnmatch", "getpass", "jinja2.runtime", "yaml",
    "hydra._internal.hydra", "hydra._internal.core_plugins.basic_sweeper", "hydra._internal.core_plugins.basic_launcher",
    "hydra._internal.utils", "hydra.main", "omegaconf", "hydra_plugins.slurm_launcher.launcher", "hydra_plugins.slurm_launcher.sweeper",
    "slurm.launch", "slurm.rules", "src.launch.sweep", "slurm.presets", "slurm.git", "slurm.snapshot", "slurm.show_logs", "slurm.runs",
    "src.config.refusal", "src.runs.resume", "src.launch.local", "src.launch.processes", "src.launch.rank", "src.runs.lock",
    "src.distributed.horovod_install", "src.runs.attempts",
)  # fmt: skip
"""What the commands import in the end; otherwise each child would import it again."""


def load(project: Path) -> None:
    """Import, let Hydra look for its plugins, and compose once: its parsers cache what they build."""
    sys.path.append(str(project))
    for name in LOADED:
        import_module(name)
    from hydra.core.global_hydra import GlobalHydra

    from src.config.compose import compose, quoted

    for words in (["cluster=slurm", "optimizer.lr=1e-3", "cluster.extra=[--a=b]"], ["model=mlp"]):
        compose([quoted(w) for w in words])
    GlobalHydra.instance().clear()
    sys.path.remove(str(project))
    gc.collect()
    gc.freeze()


def become(request: dict[str, Any], base: list[str]) -> None:
    """Make this child look like a new interpreter."""
    os.setsid()
    os.umask(0o022)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for number, path in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        handle = os.open(path, flags if number else os.O_RDONLY, 0o666)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.argv = [request["script"], *request["words"]]
    sys.path[:] = [str(Path(request["script"]).parent), *base]


def wait(child: int, limit: float) -> dict[str, Any]:
    """How the child ended; it and all it started are gone then."""
    start, handle = time.monotonic(), os.pidfd_open(child)
    ended = bool(select.select([handle], [], [], limit)[0])
    os.close(handle)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"code": code, "seconds": time.monotonic() - start, "ended": ended}


def serve(base: list[str], pipes: tuple[Any, Any]) -> str:
    """Answer requests until there are no more; in a child, return the script to run."""
    requests, answers = pipes
    while line := requests.readline():
        request = json.loads(line)
        child = os.fork()
        if not child:
            for pipe in pipes:
                pipe.close()
            become(request, base)
            return str(request["script"])
        answers.write(json.dumps(wait(child, request["limit"])) + "\n")
        answers.flush()
    return ""


if __name__ == "__main__":
    start = sys.path[1:]
    load(Path(sys.argv[1]))
    pipes = (open(os.dup(0)), open(os.dup(1), "w"))  # noqa: SIM115
    print("ready", file=pipes[1], flush=True)
    if script := serve(start, pipes):
        runpy.run_path(script, run_name="__main__")
