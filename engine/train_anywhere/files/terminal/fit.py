"""Lines fitted to the width of a terminal: broken between words, continued below their first word, with commands left whole."""

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

WORD = re.compile(r"(\s*)(`[^`]*`\S*|'[^']*'\S*|(?:\S*/)?(?:python3?|tensorboard) .*|\S+)")
"""A gap and what must not be broken: a word, a quoted phrase, or a command up to the end of its line."""

NARROW = 30
"""Fewest columns for a description next to its key; a narrower one starts on a new line."""


def terminal_width(stream: TextIO | None = None) -> int | None:
    """Return the columns of the terminal; None if the stream (default: standard output) is not one."""
    stream = sys.stdout if stream is None else stream
    return shutil.get_terminal_size().columns if stream is not None and stream.isatty() else None


def fit(text: str, width: int | None, column: int | None = None) -> str:
    """Return the lines broken to at most `width` columns; longer words and commands stay whole.

    Args:
        text: the lines, joined by newlines.
        width: columns of the terminal; None: nothing is changed.
        column: where continued lines start; None: below the first word of each line, after a bullet.
    """
    if width is None:
        return text
    return "\n".join(
        line if len(line) <= width else _fit_line(line, width, column) for line in text.split("\n")
    )


def _fit_line(line: str, width: int, column: int | None) -> str:
    bullet = re.match(r" *(?:- )?", line)
    column = len(bullet[0]) if bullet and column is None else column or 0
    lines, now = [], line[:column]
    for gap, word in WORD.findall(line[column:]):
        if now.strip(" -") and len(now) + len(gap) + len(word) > width:
            lines.append(now.rstrip())
            now = " " * (column if len(word) <= width - column else min(column, 4)) + word
        else:
            now += gap + word
    return "\n".join([*lines, now])


def fit_parts(parts: Sequence[str], width: int) -> str:
    """Join parts of a line by two blanks; those at the end that do not fit into the width are left out."""
    line = "  ".join(parts)
    if len(line) <= width:
        return line
    shown = [*parts]
    while len(shown) > 1 and len("  ".join(shown)) + 3 > width:
        shown.pop()
    return f"{'  '.join(shown)[: width - 3]}  …"


class FittedHelp(argparse.RawDescriptionHelpFormatter):
    """A formatter for `--help` that fits the lines of the description to the terminal."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return fit_page(re.sub(r"(?<=\S)\n(?=\S)", " ", text.strip("\n")), width + 2)


def fit_page(page: str, width: int | None) -> str:
    """Return a page of `--help` fitted to `width`; a line with columns is continued in its last column."""
    return page if width is None else "\n".join(_hang(line, width) for line in page.split("\n"))


def _hang(line: str, width: int) -> str:
    gap = re.match(r"(.*\S)  +(?=\S)(?:# )?", line)
    if len(line) <= width or not gap:
        return fit(line, width)
    column = gap.end()
    if width - column >= NARROW:
        return fit(line, width, column)
    return f"{gap[1]}\n{fit(' ' * 8 + line[column:], width)}"
