"""`monitor.notify` with real commands and a real web server on this machine."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from train_anywhere.config.schema import Config
from train_anywhere.features import Features, describe, problems
from train_anywhere.features.node import make_services
from train_anywhere.features.notify import __main__ as program
from train_anywhere.files.terminal.printable import mask_urls
from train_anywhere.launch.processes import LocalRun
from train_anywhere.monitor.live import record_end, record_event
from train_anywhere.monitor.report.page import write_report
from train_anywhere.runs.folder import RunDir

Train = Callable[..., "CompletedProcess[str]"]
MakeRun = Callable[..., tuple[Config, RunDir]]
SMALL = ("model=mlp", "trainer.max_epochs=1", "monitor.tensorboard=false", "monitor.sample_seconds=0.5")
SECRET = "T00/B00/secret"


class Webhook(BaseHTTPRequestHandler):
    """Keep the posted messages and answer with the server's status."""

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
    write_report(RunDir(run), describe)
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
    assert (
        done.stderr.count("monitor.notify: the command failed (exit code 3); the run is not affected.") == 1
    )


def test_whatever_goes_wrong_is_one_line(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The printed target hides a command and all of a URL but its host."""
    monkeypatch.setattr(program, "LIMIT_S", 5.5)
    run, began = RunDir(tmp_path / "digits" / "1"), time.monotonic()

    def failure(target: str, text: str = "") -> str:
        program.send(run, target, "done", text)
        return capsys.readouterr().err

    assert "the command failed (sh did not answer within 0.5 s and was killed)" in failure("sleep 100; true")
    assert not failure("exec 0<&-; sleep 0.1", "x" * 10**7)  # it does not read its input
    assert "the command failed (exit code 1)" in failure(f"A='x {SECRET}' false")
    monkeypatch.setattr(program, "LIMIT_S", 10.0)
    assert not failure(server.url, "a\nb \ud800") and server.posted[-1][2] == "digits 1 done: a\\nb ?"
    server.status = 404
    printed = failure(server.url.replace("http", "HTTP"))
    assert "HTTP://127.0.0.1" in printed and "HTTP Error 404" in printed and "secret" not in printed
    printed = failure(f"{server.url} x")
    assert "InvalidURL" in printed and "secret" not in printed
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert "refused" in failure(f"http://127.0.0.1:{free.getsockname()[1]}/")
    assert time.monotonic() - began < 30


def test_a_webhook_that_answers_too_slowly_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It accepts the connection and sends nothing."""
    monkeypatch.setattr(program, "LIMIT_S", 6.0)

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            time.sleep(20)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        began, url = time.monotonic(), f"http://127.0.0.1:{listener.getsockname()[1]}/"
        program.send(RunDir(tmp_path), url, "done", "")
        assert time.monotonic() - began < 10
    assert "timed out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "code", "text"),
    [
        ("queued", 1, "the ranks did not start (exit code 1)"),
        ("queued", 137, "the ranks did not start (signal SIGKILL, often the memory limit)"),
        ("queued", 75, ""),
        ("queued", 0, ""),
        (
            "running",
            137,
            "its ranks were killed, or could not record why (signal SIGKILL, often the memory limit)",
        ),
        ("failed", 134, "its ranks were killed, or could not record why (signal SIGABRT)"),
        ("preempted", 1, ""),
    ],
)
def test_ranks_that_could_not_record_why(make_run: MakeRun, state: str, code: int, text: str) -> None:
    _, run = make_run()
    run.update(state=state)
    record_end(run, code)
    path = run.monitor / "event-failed.json"
    assert (json.loads(path.read_text())["text"] if path.exists() else "") == text


def test_the_run_of_another_job_has_not_failed(make_run: MakeRun) -> None:
    """A job whose ranks refuse to start, because another job trains in the folder."""
    _, run = make_run()
    run.update(state="running", attempts=[{"job": "8"}])
    record_end(run, 2)
    assert not [*run.monitor.glob("event-*")]


def test_events_are_sent_while_the_run_trains_and_at_its_end(server: Server, make_run: MakeRun) -> None:
    """Each is sent once, and the monitor does not wait."""
    config, run = make_run(
        f"monitor.notify={server.url}", "monitor.sample_seconds=null", "monitor.hang_minutes=null"
    )
    features = Features.of(config)
    (sender,) = make_services(run, features)
    record_event(run, "hung", "now")
    sender.poll(0.0)
    sender.poll(0.0)
    end = time.monotonic() + 30
    while not server.posted and time.monotonic() < end:
        time.sleep(0.1)
    record_event(run, "nan", "later")
    run.update(state="failed", attempts=[{"reason": "broken"}])
    for _ in range(2):
        with ExitStack() as stack:
            features.supervise(LocalRun(run), stack)
        run.update(state="preempted")  # it may continue, so nothing is sent about its end
    assert server.posted[0][2].endswith("hung: now") and len(server.posted) == 3
    assert {text.split(" ", 2)[2] for _, _, text in server.posted[1:]} == {"failed: broken", "nan: later"}


def test_the_end_of_a_run_waits_no_longer_than_the_limit(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = make_run("monitor.notify='sleep 20'")
    run.update(state="completed")
    monkeypatch.setattr("train_anywhere.features.notify.LIMIT_S", 0.5)
    began = time.monotonic()
    with ExitStack() as stack:
        Features.of(config).supervise(LocalRun(run), stack)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("value", ["ftp://host/x", "https://", "http://host:port/", "mail 'me"])
def test_a_value_that_can_not_work_is_refused(make_config: Callable[..., Config], value: str) -> None:
    config = make_config(f"monitor.notify={value!r}" if "'" not in value else f'monitor.notify="{value}"')
    (problem,) = problems(config, "any")
    assert problem.startswith("monitor.notify=") and "use https://... of an incoming webhook" in problem


@pytest.mark.parametrize(
    "value",
    ["https://host/x", "http://[::1]:8/y?z=1", "mail -s x me@host", "a://b | cat", "curl -d @- https://x/y"],
)
def test_a_value_that_works_is_not_refused(make_config: Callable[..., Config], value: str) -> None:
    if value.startswith("a:"):
        value = f"cat {value}"
    assert problems(make_config(f"monitor.notify='{value}'"), "any") == []


def test_only_the_host_of_a_url_is_shown() -> None:
    assert mask_urls("curl 'https://me:pw@host:8/a?b' x") == "curl 'https://host:8/...' x"
    assert mask_urls("https://host?token=1") == "https://host/..."
