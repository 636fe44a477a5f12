"""Lines fitted to the width of a terminal: broken between words, continued below their first word."""

import argparse
import re
import shutil
import sys
import textwrap
from typing import TextIO

CALL = r"(?:\S*/)?(?:python3?|tensorboard) "
PHRASE = re.compile(rf"(?<!\S)(?:`[^`]*`|'[^']*'|`?{CALL}.*)")
"""What must not be broken: a quoted phrase, or a command up to the end of its line, so that it can be copied."""

COLUMN = re.compile(rf"{CALL}.*|\S+(?: (?!{CALL})\S+)*")
"""A command, or words with single blanks between them, such as `val/acc 0.9`."""

GLUE = "\0"
"""Stands for a blank at which a line is not broken."""


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
    lines = text.split("\n")
    return "\n".join(
        one if width is None or len(one) <= width else _fit_line(one, width, column) for one in lines
    )


def fit_message(text: str, stream: TextIO) -> str:
    """Return an error or a note fitted to the terminal of the stream, and other output unchanged."""
    return fit(text, terminal_width(stream)) if text.startswith(("error: ", "note: ", "kept: ")) else text


def _fit_line(line: str, width: int, column: int | None) -> str:
    if column is None:
        column = len(line) - len(re.sub(r"^ *(?:- |[A-Z]\w*(?: \w+)?: +)?", "", line))

    def glue(found: re.Match[str]) -> str:
        if len(found[0]) <= width - column:
            return found[0].replace(" ", GLUE)
        return PHRASE.sub(lambda phrase: phrase[0].replace(" ", GLUE), found[0])

    start, body = line[:column], COLUMN.sub(glue, line[column:])
    longest = max(map(len, body.split()), default=0)
    lines = []
    if start.strip(" -") and column + longest > width:  # such as a command, which gets lines of its own
        lines, start = [start.rstrip()], " " * 4
    wrapper = textwrap.TextWrapper(
        width, start, " " * len(start), break_long_words=False, break_on_hyphens=False
    )
    for text in wrapper.wrap(body):
        lines += _fit_command(text.replace(GLUE, " "), width)
    return "\n".join(lines)


def _fit_command(line: str, width: int) -> list[str]:
    """Return a command that is too long in lines that end with a backslash, and other lines unchanged."""
    found = re.match(rf" *(?=`?{CALL})", line)
    if len(line) <= width or not found:
        return [line]
    lines = [""]
    for part in re.findall(r"""(?:'[^']*'|"[^"]*"|\S)+""", line):  # words with the blanks in their quotes
        if lines[-1] and len(found[0] + lines[-1] + part) + 3 > width:
            lines.append("")
        lines[-1] += f" {part}" if lines[-1] else part
    return [f"{found[0]}{one}" for one in " \\\n".join(lines).split("\n")]


class FittedHelp(argparse.RawDescriptionHelpFormatter):
    """A formatter for `--help` that fits the lines of the description to the terminal."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return fit_page(re.sub(r"(?<=\S)\n(?=\S)", " ", text.strip("\n")), width + 2)


def fit_page(page: str, width: int | None) -> str:
    """Return a page of `--help` fitted to `width`. Columns continue in their last one, at most in the middle of the line."""
    if width is None:
        return page
    lines = []
    for line in page.split("\n"):
        gap = re.match(r".*\S  +(?=\S)(?:# )?", line)
        longest = max(map(len, line[gap.end() :].split())) if gap else 0
        column = gap and min(gap.end(), width // 2, max(8, width - longest))
        lines.append(fit(line, width, column))
    return "\n".join(lines)
