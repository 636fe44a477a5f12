"""Ask a headless Chromium about pages in a folder, on screens of several widths. Without Chromium the test is skipped."""

import functools
import json
import queue
import shutil
import subprocess
import tempfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

QUESTIONS = """
<!doctype html><body></body>
<script>
(async () => {
  const answers = [];
  for (const [page, width, question] of ASKED) {
    const frame = document.createElement("iframe");
    frame.style = `width: ${width}px; height: 800px; border: 0`;
    frame.src = page;
    document.body.append(frame);
    await new Promise((done) => { frame.onload = done; });
    try {
      answers.push(new frame.contentWindow.Function("document", question)(frame.contentDocument));
    } catch (error) { answers.push(String(error)); }
    frame.remove();
  }
  await fetch("/answers", {method: "POST", body: JSON.stringify(answers)});
})();
</script>
"""
"""Shows each page in a frame of the width, and sends what the question, the body of a JavaScript function, returns."""


def ask(folder: Path, asked: list[tuple[str, int, str]]) -> list[Any]:
    """Return the answers to questions about pages in the folder: each is a page, a width in pixels, and JavaScript."""
    if not CHROMIUM:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    answers: queue.Queue[bytes] = queue.Queue()

    class Folder(SimpleHTTPRequestHandler):
        def do_POST(self) -> None:
            answers.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    (folder / "questions.html").write_text(QUESTIONS.replace("ASKED", json.dumps(asked)))
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Folder, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        address = f"http://127.0.0.1:{server.server_port}/questions.html"
        browser = subprocess.Popen([CHROMIUM, *options, address], stdout=-3, stderr=-3)
        try:
            found: list[Any] = json.loads(answers.get(timeout=120))
            return found
        finally:
            browser.kill()
            browser.wait()
            server.shutdown()
