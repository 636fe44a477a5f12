"""Fetching, from a real HTTP server on the loopback interface."""

import hashlib
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from train_anywhere.data.folders import fetch
from train_anywhere.errors import DataError

CONTENT = bytes(range(256)) * 1000
CHECKSUMS = {"a.gz": hashlib.md5(CONTENT).hexdigest()}


class Mirror(BaseHTTPRequestHandler):
    """/good/ sends the file, /slow/ later, /wrong/ another one, /short/ half of it; /missing/ is 404."""

    requests: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        _, kind, _ = self.path.split("/")
        self.requests[kind] += 1
        if kind == "slow":
            time.sleep(1)
        if kind == "missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write({"wrong": CONTENT[::-1], "short": CONTENT[: len(CONTENT) // 2]}.get(kind, CONTENT))

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Mirror.requests.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}/"
        http.shutdown()


def fetch_into(folder: Path, *mirrors: str) -> None:
    fetch(folder, CHECKSUMS, lambda: [name for name in CHECKSUMS if not (folder / name).exists()], mirrors)


def visible(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name != ".download.lock"]


def test_fetches_into_a_new_folder(tmp_path: Path, server: str) -> None:
    fetch_into(tmp_path / "new" / "raw", server + "good/")
    assert (tmp_path / "new" / "raw" / "a.gz").read_bytes() == CONTENT


def test_present_files_are_not_fetched(tmp_path: Path, server: str) -> None:
    fetch_into(tmp_path, server + "good/")
    fetch_into(tmp_path, server + "good/")
    assert Mirror.requests == {"good": 1}


@pytest.mark.parametrize("broken", ["wrong", "short", "missing"])
def test_falls_back_to_the_next_mirror(tmp_path, server, broken, capsys) -> None:
    fetch_into(tmp_path, server + f"{broken}/", server + "good/")
    assert (tmp_path / "a.gz").read_bytes() == CONTENT
    assert visible(tmp_path) == ["a.gz"] and Mirror.requests == {broken: 1, "good": 1}
    assert f"{broken}/" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("broken", "reason"), [("wrong", "256000 bytes, MD5"), ("short", "128000 bytes, MD5"), ("missing", "404")]
)
def test_a_broken_mirror_leaves_nothing_behind(tmp_path: Path, server: str, broken: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        fetch_into(tmp_path, server + f"{broken}/")
    assert visible(tmp_path) == []


def test_every_mirror_is_named_when_all_fail(tmp_path: Path, server: str) -> None:
    mirrors = (server + "missing/", "http://127.0.0.1:9/", server + "short/", "http://not a host/")
    with pytest.raises(DataError) as caught:
        fetch_into(tmp_path, *mirrors)
    assert all(mirror in str(caught.value) for mirror in mirrors) and "\n" not in str(caught.value)


def test_processes_of_a_node_fetch_once(tmp_path: Path, server: str) -> None:
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=fetch_into, args=(tmp_path, server + "slow/")) for _ in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0, 0, 0] and Mirror.requests == {"slow": 1}


def test_a_folder_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file/raw can't be written"):
        fetch_into(tmp_path / "file" / "raw", "http://127.0.0.1:9/")
