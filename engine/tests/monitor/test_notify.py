"""`monitor.notify` with real commands and a real web server on this machine; of a killed rank: tests/slurm/test_killed_rank_message.py."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from train_anywhere.config.schema import Config
from train_anywhere.features import Features, problems
from train_anywhere.features.notify import messages
from train_anywhere.features.notify.events import record_event
from train_anywhere.files.terminal.printable import mask_urls
from train_anywhere.monitor.node import make_services
from train_anywhere.monitor.report.page import write_report
from train_anywhere.runs.folder import RunDir

Train = Callable[..., "CompletedProcess[str]"]
MakeRun = Callable[..., tuple[Config, RunDir]]
SMALL = ("model=mlp", "trainer.max_epochs=1", "monitor.tensorboard=false", "monitor.sample_seconds=0.5")
SECRET = "T00/B00/secret"


class Webhook(BaseHTTPRequestHandler):
    """Keep what is posted; answer with the server's status."""

    server: "Server"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append((self.path, self.headers["Content-Type"], json.loads(body)["text"]))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *words: object) -> None:
        """Print nothing."""


class Server(HTTPServer):
    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Webhook)
        self.posted: list[tuple[str, str, str]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/{SECRET}"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def newest(tmp_path: Path) -> Path:
    return (tmp_path / "results" / "latest").resolve()


def test_a_failed_run_posts_to_a_webhook(server: Server, tmp_path: Path, train: Train) -> None:
    words = ("optimizer=sgd", "optimizer.lr=1e6", "trainer.detect_nan=stop", "trainer.log_every_n_steps=1")
    done = train(*SMALL, *words, f"monitor.notify={server.url}", f"paths.results={tmp_path / 'results'}")
    assert done.returncode == 1 and "monitor.notify" not in done.stdout + done.stderr
    run = newest(tmp_path)
    assert {(path, kind) for path, kind, _ in server.posted} == {(f"/{SECRET}", "application/json")}
    texts = sorted(text for _, _, text in server.posted)
    assert [text.partition(" is ")[0] for text in texts] == [
        f"digits {run.name} failed: train/loss",
        f"digits {run.name} nan: train/loss",
    ]
    write_report(RunDir(run))
    shown = (run / "report.html").read_text() + done.stdout + done.stderr
    assert SECRET not in shown and "127.0.0.1" in shown


def test_a_command_gets_the_message_of_a_complete_run(tmp_path: Path, train: Train) -> None:
    file = tmp_path / "seen"
    command = f"(cat; echo $TRAIN_EVENT; echo $TRAIN_RUN; echo $TRAIN_MESSAGE) >> {file}"
    done = train(*SMALL, f"monitor.notify='{command}'", f"paths.results={tmp_path / 'results'}")
    assert done.returncode == 0, done.stderr
    message, event, folder, again = file.read_text().splitlines()
    assert message == again and message.startswith(f"digits {newest(tmp_path).name} done: ")
    assert "val/acc 0." in message and (event, folder) == ("done", str(newest(tmp_path)))


def test_a_command_that_fails_changes_nothing(tmp_path: Path, train: Train) -> None:
    done = train(*SMALL, "monitor.notify='exit 3'", f"paths.results={tmp_path / 'results'}")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("monitor.notify: exit 3 failed (exit code 3); the run is not affected.") == 1


def test_whatever_goes_wrong_is_returned(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "PATIENCE_S", 0.5)
    run, began = RunDir(tmp_path / "digits" / "1"), time.monotonic()
    assert messages.send(run, "sleep 100; true", "done", "") == "no end within 0 s"
    assert messages.send(run, "exec 0<&-; sleep 0.1", "done", "x" * 10**7) == ""  # it does not read its input
    server.status = 404
    assert messages.send(run, server.url, "done", "a\nb") == "HTTP status 404"
    assert server.posted[-1][2] == "digits 1 done: a\\nb"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/"
    assert "refused" in messages.send(run, url, "done", "")
    assert time.monotonic() - began < 10


def test_events_are_sent_while_the_run_trains(server: Server, make_run: MakeRun) -> None:
    """Not those of an earlier attempt; those that a killed monitor has left, at the end."""
    config, run = make_run(
        f"monitor.notify={server.url}", "monitor.sample_seconds=null", "monitor.hang_minutes=null"
    )
    record_event(run, "idle", "before")
    (sender,) = make_services(run, Features.of(config))
    record_event(run, "hung", "now")
    sender.poll(0.0)
    sender.poll(0.0)
    record_event(run, "nan", "later")
    (run.monitor / "event-nan.json").rename(run.monitor / "event-nan.json.sending")
    run.update(state="preempted")  # it may continue, so nothing is sent about its end
    messages.send_end(run, server.url)
    assert [text.split(" ", 2)[2] for _, _, text in server.posted] == ["hung: now", "nan: later"]
    run.update(state="running")  # a run whose rank 0 was killed
    messages.send_end(run, server.url)
    assert "failed: its ranks were killed" in server.posted[-1][2]


@pytest.mark.parametrize("value", ["ftp://host/x", "https://", "http://host:port/", "mail 'me"])
def test_a_value_that_can_not_work_is_refused(make_config: Callable[..., Config], value: str) -> None:
    config = make_config(f"monitor.notify={value!r}" if "'" not in value else f'monitor.notify="{value}"')
    (problem,) = problems(config, lambda one: one.problems())
    assert problem.startswith("monitor.notify=") and "use https://... of an incoming webhook" in problem


@pytest.mark.parametrize(
    "value",
    ["https://host/x", "http://[::1]:8/y?z=1", "mail -s x me@host", "a://b | cat", "curl -d @- https://x/y"],
)
def test_a_value_that_works_is_not_refused(make_config: Callable[..., Config], value: str) -> None:
    if value.startswith("a:"):
        value = f"cat {value}"
    assert problems(make_config(f"monitor.notify='{value}'"), lambda one: one.problems()) == []


def test_only_the_host_of_a_url_is_shown() -> None:
    assert mask_urls("curl 'https://me:pw@host:8/a?b' x") == "curl 'https://host:8/...' x"
    assert mask_urls("https://host?token=1") == "https://host/..."
