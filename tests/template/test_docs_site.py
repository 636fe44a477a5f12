"""`make docs` builds the site, and fails if a link is broken or a page is missing."""

import subprocess

import pytest

from train_anywhere.files import ROOT


@pytest.mark.slow
@pytest.mark.alone  # `make docs` writes site/
def test_it_is_built_and_holds_every_page() -> None:
    done = subprocess.run(["make", "--no-print-directory", "docs"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "site/index.html\n"), done.stderr
    pages = [path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")]
    built = [page.parent if page.name == "index" else page for page in pages]
    assert [page for page in built if not (ROOT / "site" / page / "index.html").is_file()] == []
