"""The real TensorBoard server of the first node, and the printed address."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from typing import Any

import psutil
import pytest

from engine.tests.monitor.test_node import MakeRun, command
from tools.testing.processes import wait_until
from train_anywhere.features.serve import Serve, lines, server_address
from train_anywhere.files import ROOT
from train_anywhere.runs.folder import RunDir


def served(run: RunDir, kind: str) -> dict[str, Any]:
    return dict(json.loads((run.monitor / f"{kind}.json").read_text()))


def start(run: RunDir) -> "subprocess.Popen[str]":
    """Start the monitor of a node, which prints into a pipe."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command(run), cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_a_server_as_long_as_the_side_process(make_run: MakeRun) -> None:
    _, run = make_run("monitor.serve=true", "monitor.sample_seconds=0.2")
    with start(run) as side:
        assert side.stdout
        said = side.stdout.readline()
        found = re.search(r"http://localhost:\d+/", said)
        assert found, said
        page = urllib.request.urlopen(found[0], timeout=60).read().decode()
        assert "<title>TensorBoard</title>" in page
        assert served(run, "tensorboard") == {"url": found[0], "tunnel": None}
        board = psutil.Process(side.pid).children(recursive=True)[-1]
        assert not [one.path for one in board.memory_maps() if "tensorflow" in one.path]
        listening = [c.laddr.ip for c in board.net_connections() if c.status == psutil.CONN_LISTEN]
        assert listening == ["127.0.0.1"]
        out, err = side.communicate(timeout=60)
    assert (out, err) == ("", "")
    wait_until(lambda: not board.is_running())
    assert served(run, "tensorboard") == {}


def test_a_dashboard_of_one_s_own(make_run: MakeRun) -> None:
    """Python's own server stands for any command that serves a page."""
    serves = f'sh -c "{sys.executable} -m http.server --bind {{address}} {{port}}; true"'
    _, run = make_run(f"monitor.dashboard={serves!r}", "monitor.sample_seconds=null")
    with start(run) as side:
        assert side.stdout
        said = side.stdout.readline()
        found = re.search(r"^dashboard: +(http://localhost:\d+/)$", said)
        assert found, said
        assert "Directory listing" in urllib.request.urlopen(found[1], timeout=60).read().decode()
        assert served(run, "dashboard") == {"url": found[1], "tunnel": None}
        begun = psutil.Process(side.pid).children(recursive=True)
        side.communicate(timeout=60)
    assert len(begun) == 2  # the shell, the server
    wait_until(lambda: not any(process.is_running() for process in begun))
    assert served(run, "dashboard") == {}


def test_a_killed_side_process_leaves_no_dashboard(make_run: MakeRun) -> None:
    _, run = make_run(f"monitor.dashboard='{sys.executable} -m http.server {{port}}'")
    with start(run) as side:
        assert side.stdout
        side.stdout.readline()
        begun = psutil.Process(side.pid).children(recursive=True)
        side.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(process.is_running() for process in begun))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["monitor.dashboard='nvdashboard-of-nobody {port}'"],
            "nvdashboard-of-nobody is not installed, or not on PATH",
        ),
        (
            ["monitor.dashboard=\"sh -c 'exit 3' {port}\""],
            r"it exited with code 3, see .*/monitor/dashboard\.log",
        ),
        (["monitor.serve=true", "monitor.serve_address=203.0.113.7"], "Cannot assign requested address"),
    ],
)
def test_a_server_that_does_not_come(make_run: MakeRun, words: list[str], said: str) -> None:
    _, run = make_run(*words)
    kind = "tensorboard" if len(words) > 1 else "dashboard"
    with start(run) as side:
        assert side.stdout
        assert re.match(rf"{kind} does not run on \S+: {said}$", side.stdout.readline(), re.I)
        side.communicate(timeout=60)
    assert served(run, kind) == {}


def test_tunnels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "me")
    inside = server_address(4711, "gpu3", None, "login.site.org")
    assert inside["tunnel"] == "ssh -N -L 4711:localhost:4711 -J me@login.site.org me@gpu3"
    assert lines(inside, "TensorBoard")[1].endswith(str(inside["tunnel"]))
    for address, there in (("0.0.0.0", "gpu3"), ("10.0.0.3", "10.0.0.3")):
        tunnel = server_address(4711, "gpu3", address, None)["tunnel"]
        assert tunnel == f"ssh -N -L 4711:{there}:4711 me@<login node>"
    local = server_address(4711, "laptop", None, "")
    assert lines(local, "TensorBoard") == ["TensorBoard:   http://localhost:4711/"]


def test_the_first_node(monkeypatch: pytest.MonkeyPatch, make_run: MakeRun) -> None:
    config, run = make_run("monitor.serve=true")
    feature = Serve()
    feature.config = config
    assert feature.node_services(run, os.uname().nodename)
    monkeypatch.setenv("TRAIN_HOSTS", "gpu3.site.org:2,gpu4:2")
    assert feature.node_services(run, "gpu3") and not feature.node_services(run, "gpu4")
