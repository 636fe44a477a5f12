"""The site's search finds the page for words of users, in a headless Chromium."""

import functools
import json
import queue
import shutil
import subprocess
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from train_anywhere.config.search_terms import TERMS
from train_anywhere.files import ROOT

QUESTIONS = {
    "gradient accumulation": "how-to/accumulate-gradients",
    "mixed precision": "how-to/accumulate-gradients",
    "W&B": "how-to/track-experiments",
    "wandb": "how-to/track-experiments",
    "own dataset": "how-to/own-dataset",
    "resume after time limit": "how-to/time-limit",
    "3 GPUs on 2 nodes": "how-to/uneven-nodes",
    "job hangs": "how-to/job-hangs",
    "checkpoint frequency": "how-to/checkpoint-frequency",
    "freeze layers": "how-to/freeze-layers",
    "pretrained weights": "how-to/freeze-layers",
    "several validation sets": "how-to/several-validation-sets",
    "profiler": "how-to/trainer-options",
    "early stopping": "how-to/early-stopping",
    "custom metrics": "how-to/custom-metric",
    "hyperparameter search": "how-to/hyperparameter-search",
    "gradient_clip_algorithm": "reference/keys",
    "exit code": "reference/exit-codes",
    "environment variable": "reference/environment-variables",
    "run.json": "reference/run-folder",
    "modify container": "clusters/technion",
    "conda on neuron": "clusters/neuron",
    "collective ops must be configured": "how-to/troubleshooting",
    "horovodrun check-build": "concepts/strategies",
    "nodelist allocation": "clusters/neuron",
    "ImageNet Ibex": "clusters/ibex",
    "profile GPU": "how-to/running-job",
}
"""Words that are typed, and the page that has to be among the first three results."""

QUESTIONS |= {term: page for terms, page, _ in TERMS for term in terms.split(", ") if term not in QUESTIONS}

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

PAGE = """
<!doctype html><iframe width="1200" height="800"></iframe>
<script>
const frame = document.querySelector("iframe");
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
async function type(words, wanted) {
  const page = frame.contentDocument, input = page.querySelector("[data-md-component=search-query]");
  for (let tries = 0; tries < 400; tries++) {
    input.focus();
    input.value = words;
    for (const kind of ["input", "keyup"]) input.dispatchEvent(new Event(kind, {bubbles: true}));
    await wait(50);
    const meta = page.querySelector(".md-search-result__meta").textContent;
    if (wanted.test(meta)) return page.querySelectorAll(".md-search-result__item");
  }
  return [];
}
async function search(words) {
  await type("", /Type to start/);
  const items = [...await type(words, /\\d|[Nn]o match/)];
  return items.map((item) => new URL(item.querySelector("a").href).pathname.replace(/^\\/|\\/$/g, ""));
}
(async () => {
  frame.src = "/index.html";
  await new Promise((done) => { frame.onload = done; });
  const found = {};
  for (const words of QUESTIONS) found[words] = await search(words);
  await fetch("/answers", {method: "POST", body: JSON.stringify(found)});
})();
</script>
"""
"""Opens the site, types the words of each question into its search, and sends the pages that it lists back."""


class Site(SimpleHTTPRequestHandler):
    """Serves the site, the page that types, and receives what it has found."""

    answers: "queue.Queue[bytes]" = queue.Queue()

    def do_GET(self) -> None:
        if self.path != "/type":
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE.replace("QUESTIONS", json.dumps(list(QUESTIONS))).encode())
        return None

    def do_POST(self) -> None:
        self.answers.put(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    """Return the pages that the search lists for each question, best first."""
    if not CHROMIUM:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    done = subprocess.run(["make", "--no-print-directory", "docs"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Site, directory=str(ROOT / "site")))
    Thread(target=server.serve_forever, daemon=True).start()
    profile = tmp_path_factory.mktemp("chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    command = [CHROMIUM, *options, f"http://127.0.0.1:{server.server_port}/type"]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield json.loads(Site.answers.get(timeout=300))
    finally:
        browser.kill()
        browser.wait()
        server.shutdown()


@pytest.mark.slow
@pytest.mark.alone  # `make docs` writes site/
@pytest.mark.parametrize(("words", "page"), QUESTIONS.items())
def test_the_page_is_among_the_first_three_results(
    found: dict[str, list[str]], words: str, page: str
) -> None:
    assert (ROOT / "docs" / f"{page}.md").is_file()
    assert page in found[words][:3]
