"""A stand-in for the calls of the real client to the server of W&B.

It keeps the rows of each run at the place that the client sends.
"""

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

ENTITY = {"id": "e", "name": "me"}
PROJECT = {"id": "p", "name": "p", "entity": ENTITY}


class Server(ThreadingHTTPServer):
    """Attributes: `runs`, the rows of each run as JSON by its id, `summaries`, `url`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.runs: dict[str, list[str]] = {}
        self.summaries: dict[str, str] = {}
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def graphql(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The data of an answer."""
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.url}/up"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        if operation == "UpsertBucket":
            run = {
                "id": "r",
                "name": variables.get("name"),
                "displayName": "x",
                "config": "{}",
                "project": PROJECT,
            }
            return {"upsertBucket": {"bucket": run, "inserted": True}}
        if operation == "RunResumeStatus":
            return {"model": {**PROJECT, "bucket": self._bucket(variables["name"])}}
        return {}

    def _bucket(self, name: str) -> dict[str, Any] | None:
        if name not in self.runs:
            return None
        lines = {"logLineCount": 0, "eventsLineCount": 0, "historyLineCount": len(self.runs[name])}
        tails = {
            "historyTail": json.dumps(self.runs[name][-1:]),
            "eventsTail": "[]",
            "summaryMetrics": self.summaries.get(name, "{}"),
        }
        return {
            "id": "r",
            "name": name,
            "config": "{}",
            "wandbConfig": '{"t": 1}',
            "tags": [],
            **lines,
            **tails,
        }


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        sent = json.loads(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
        if self.path == "/graphql":
            return self._answer(
                {"data": self.server.graphql(sent["operationName"], sent.get("variables", {}))}
            )
        *_, run, _ = self.path.split("/")  # /files/<entity>/<project>/<run>/file_stream
        rows = self.server.runs.setdefault(run, [])
        files = sent.get("files") or {}
        if summary := files.get("wandb-summary.json"):
            self.server.summaries[run] = summary["content"][-1]
        if new := files.get("wandb-history.jsonl"):
            rows[new["offset"] : new["offset"] + len(new["content"])] = new["content"]
        return self._answer({})

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer({})

    def _answer(self, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    """A server on a free port of this machine."""
    with Server() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
