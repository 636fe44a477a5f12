"""`monitor.notify` with real commands and a real web server on this machine; of a killed rank: tests/slurm/test_killed_rank_message.py."""

import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from train_anywhere.config.schema import Config
from train_anywhere.features import Features, problems
from train_anywhere.features.notify import messages
from train_anywhere.features.notify.events import record_event
from train_anywhere.files.terminal.printable import mask_urls
from train_anywhere.monitor.node import make_services, run_services
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
    assert done.stderr.count("monitor.notify: exit failed (exit code 3); the run is not affected.") == 1


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


def test_a_webhook_that_answers_too_slowly_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends a byte now and then, so that no single wait is long."""
    monkeypatch.setattr(messages, "PATIENCE_S", 0.5)

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            for _ in range(100):
                connection.sendall(b"H")
                time.sleep(0.2)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        began, url = time.monotonic(), f"http://127.0.0.1:{listener.getsockname()[1]}/"
        assert messages.send(RunDir(tmp_path), url, "done", "") == "no answer within 0 s"
        assert time.monotonic() - began < 10


def test_a_secret_is_not_printed(
    server: Server, make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a command only the name, of a URL only the host, in whichever letters it is typed."""
    _, run = make_run()
    url = server.url.replace("http", "HTTP")
    server.status = 500
    commands = [f"false {SECRET}", f"A='x {SECRET}' false", f"(false {SECRET})"]
    for number, target in enumerate([url, f"{url} x", *commands]):
        record_event(run, "done", str(number))
        messages.send_events(run, target, "event-*.json")
    (_, _, text), shown = server.posted[0], capsys.readouterr().err
    assert text.endswith("done: 0")
    assert "HTTP://127.0.0.1" in shown and "monitor.notify: false failed (exit code 1)" in shown
    assert "the command failed" in shown and "secret" not in shown


def test_a_command_that_hangs_ends_with_the_monitor(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, run = make_run()
    started = tmp_path / "started"
    sender = messages.Sender(
        run, f"if [ -e {started} ]; then cat >>{started}; else touch {started}; sleep 600; fi"
    )
    sender.every_seconds = 0.01
    record_event(run, "hung", "now")
    run_services([sender], lambda: time.sleep(0.01) or started.exists(), run)  # type: ignore[func-returns-value]
    assert sender.command and sender.command.wait(5) == -signal.SIGKILL
    run.update(state="preempted")
    messages.send_end(run, sender.target)
    assert started.read_text().endswith("hung: now\n") and not capsys.readouterr().err


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
def test_ranks_that_could_not_record_why(
    make_run: MakeRun, tmp_path: Path, state: str, code: int, text: str
) -> None:
    _, run = make_run()
    run.update(state=state)
    messages.send_end(run, f"cat >{tmp_path / 'sent'}", code)
    sent = tmp_path / "sent"
    assert (sent.read_text().partition(" failed: ")[2] if sent.exists() else "") == (text and f"{text}\n")


def test_the_run_of_another_job_has_not_failed(make_run: MakeRun, tmp_path: Path) -> None:
    """A job whose ranks refuse to start, because another job trains in the folder."""
    _, run = make_run()
    run.update(state="running", attempts=[{"job": "8"}])
    messages.send_end(run, f"touch {tmp_path / 'sent'}", 2)
    assert not (tmp_path / "sent").exists()


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
