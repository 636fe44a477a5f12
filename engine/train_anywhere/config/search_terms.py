"""Terms that users of other programs know, each with the page that answers it.

One table for three readers: the hint for a wrong key, `--help TERM`, and the search of the site (tools/site/search_terms.py).
"""

import re
from pathlib import Path

TABLE = Path(__file__).with_name("search_terms.txt")
"""Rows of terms, the page that answers them, and where they are from. A program's own name for a key is in hints.json."""

TERMS = [row.split(" | ") for row in TABLE.read_text().splitlines()]


def find_page(term: str) -> str | None:
    """Return the page for a term, such as `how-to/figures`. None if it has none.

    Args:
        term: words or a key in any form: `class_weight`, `trainer.class-weight`, `Class weights`. Of several words, or of a variable
            such as WANDB_API_KEY, the longest term in it counts: `out of memory` in `cuda out of memory`.
    """
    pages = {plain(page.rpartition("/")[2]): page for _, page, _ in TERMS}
    pages |= {plain(one): page for terms, page, _ in TERMS for one in terms.split(", ")}
    whole = plain(term)
    inside = [one for one in pages if (" " in term or term.isupper()) and f" {one} " in f" {whole} "]
    return (
        pages.get(whole)
        or pages.get(plain(term.rpartition(".")[2]))
        or pages.get(max(inside, key=len, default=""))
    )


def plain(term: str) -> str:
    """Return the words of a term in lower case and without the `s` of a plural."""
    return " ".join(re.sub(r"(?<=\w\w\w)s$", "", word) for word in re.findall(r"[a-z0-9]+", term.lower()))
