"""Hook of MkDocs: the search of the site finds a page by the terms of other programs (config/search_terms.txt of the engine)."""

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (ROOT / "engine", *ROOT.glob(".venv/lib/python3*/site-packages"))
"""Where the engine may be: in the project, or installed."""

[TABLE, *_] = filter(Path.is_file, (folder / "train_anywhere/config/search_terms.txt" for folder in FOLDERS))
TERMS = [row.split(" | ") for row in TABLE.read_text().splitlines()]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Give the page its terms as tags, which only the search reads."""
    name = page.file.src_uri.removesuffix(".md")
    page.meta["tags"] = [term for terms, target, _ in TERMS if target == name for term in terms.split(", ")]
    return markdown
