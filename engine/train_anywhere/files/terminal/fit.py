"""Lines fitted to the width of a terminal: broken between words, continued below their first word."""

import argparse
import re
import shutil
import sys
from typing import TextIO

CALL = r"(?:\S*/)?(?:python3?|tensorboard) "
WORD = re.compile(rf"(\s*)(`[^`]*`\S*|'[^']*'\S*|{CALL}.*|\S+)")
"""A gap and what must not be broken: a word, a quoted phrase, or a command up to the end of its line."""

COLUMN = re.compile(rf"(\s*)({CALL}.*|\S+(?: (?!{CALL})\S+)*)")
"""A gap and a command, or words with single blanks between them, such as `val/acc 0.9`."""

SHELL_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|\S)+""")
"""A word of a command, with the blanks in its quotes."""

NARROW = 30
"""Fewest columns for a description next to its key; a narrower one starts on a new line."""


def terminal_width(stream: TextIO | None = None) -> int | None:
    """Return the columns of the terminal, or None if the stream (default: standard output) is not one."""
    stream = sys.stdout if stream is None else stream
    return shutil.get_terminal_size().columns if stream is not None and stream.isatty() else None


def fit(text: str, width: int | None, column: int | None = None) -> str:
    """Return the lines broken to at most `width` columns. Longer words stay whole.

    A long command is continued after a backslash, so that it can be copied.

    Args:
        text: the lines, joined by newlines.
        width: columns of the terminal; None: nothing is changed.
        column: where continued lines start; None: below the first word of each line, after a bullet or a name.
    """
    if width is None:
        return text
    return "\n".join(
        line if len(line) <= width else _fit_line(line, width, column) for line in text.split("\n")
    )


def fit_message(text: str, stream: TextIO) -> str:
    """Return an error or a note fitted to the terminal of the stream, and other output unchanged."""
    return fit(text, terminal_width(stream)) if text.startswith(("error: ", "note: ", "kept: ")) else text


def _fit_line(line: str, width: int, column: int | None) -> str:
    start = re.match(r" *(?:- |[A-Z]\w*(?: \w+)?: +)?", line)
    column = len(start[0]) if start and column is None else column or 0
    lines, now = [], line[:column]
    for gap, word in _pieces(line[column:], width - column):
        if now.strip(" -") and len(now) + len(gap) + len(word) > width:
            lines.append(now.rstrip())
            now = " " * (column if len(word) <= width - column else min(column, 4))
            gap = ""
        now += gap + (word if len(now + gap + word) <= width else _fit_command(word, width, len(now + gap)))
    return "\n".join([*lines, now])


def _pieces(line: str, room: int) -> list[tuple[str, str]]:
    """Return what must not be broken, each after its gap: columns that fit, and words of others."""
    pieces: list[tuple[str, str]] = []
    for gap, text in COLUMN.findall(line):
        pieces += [(gap, text)] if len(text) <= room else WORD.findall(gap + text)
    return pieces


def _fit_command(word: str, width: int, column: int) -> str:
    """Return a command in lines that end with a backslash, and other words unchanged."""
    if not re.match(f"`?{CALL}", word):
        return word
    lines = [""]
    for part in SHELL_WORD.findall(word):
        if lines[-1] and column + len(lines[-1]) + len(part) + 3 > width:
            lines.append("")
        lines[-1] += f" {part}" if lines[-1] else part
    return f" \\\n{' ' * column}".join(lines)


class FittedHelp(argparse.RawDescriptionHelpFormatter):
    """A formatter for `--help` that fits the lines of the description to the terminal."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return fit_page(re.sub(r"(?<=\S)\n(?=\S)", " ", text.strip("\n")), width + 2)


def fit_page(page: str, width: int | None) -> str:
    """Return a page of `--help` fitted to `width`. Columns continue in their last one."""
    return page if width is None else "\n".join(_hang(line, width) for line in page.split("\n"))


def _hang(line: str, width: int) -> str:
    gap = re.match(r"(.*\S)  +(?=\S)(?:# )?", line)
    if len(line) <= width or not gap:
        return fit(line, width)
    column = gap.end()
    if width - column >= NARROW:
        return fit(line, width, column)
    return f"{gap[1]}\n{fit(' ' * 8 + line[column:], width)}"
