"""Strings for a terminal: without characters that move the cursor, and fitted to it.

Lines are broken between words and continued below their first word, with commands left whole.
"""

import argparse
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from train_anywhere.files.terminal.output import escape_characters

# C0, DEL, C1; direction marks, zero-width characters, line separators, tags. Tab and newline stay: they are layout.
_CONTROL = (
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f"
    r"\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
CONTROL = re.compile(_CONTROL)

LOG_SEQUENCES = re.compile(
    # group 1 is printed: colors, and what progress bars do within their line
    r"(\x1b\[[\d;:]*m|[\r\x08])"
    # removed: https://www.ecma-international.org/publications-and-standards/standards/ecma-48
    r"|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)"
    f"|{_CONTROL}"
)


def printable(text: str) -> str:
    r"""Return the string with its control characters escaped, such as `\x1b`."""
    return CONTROL.sub(lambda found: _escape(found[0]), text)


def one_line(text: str) -> str:
    """Escape like `printable`, and line breaks too: a name can't look like a line."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def mask_urls(text: str) -> str:
    """Return the string with only scheme and host of each URL: the rest may be secret."""
    return re.sub(r"(https?://)(?:[^/\s'\"]*@)?([^/?\s'\"]*)[^\s'\"]*", r"\1\2/...", text, flags=re.I)


def printable_log(text: str) -> str:
    """Return the output of a training with its colors, but without other terminal sequences."""
    return LOG_SEQUENCES.sub(lambda found: found[1] or ("" if found[0][1:] else _escape(found[0])), text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


class Printable:
    """A stream that prints strings through `printable` or `printable_log`."""

    def __init__(self, stream: TextIO, log: bool) -> None:
        self.stream, self._clean = stream, printable_log if log else printable

    def write(self, text: str) -> int:
        """Write a string made printable and fitted, and return the original length."""
        shown = self._clean(text)
        sentence = shown.startswith(("error: ", "note: ", "kept: "))
        self.stream.write(fit(shown, terminal_width(self.stream)) if sentence else shown)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def printable_output(log: bool = False) -> Iterator[None]:
    """Make all output of this process printable within the block."""
    escape_characters()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream and Printable(stream, log) for stream in before)  # type: ignore[assignment]
    try:
        yield
    finally:
        for name, stream in zip(("stdout", "stderr"), before, strict=True):
            if isinstance(getattr(sys, name), Printable):  # else `output_problem` has closed it
                setattr(sys, name, stream)


WORD = re.compile(r"(\s*)(`[^`]*`\S*|'[^']*'\S*|(?:\S*/)?(?:python3?|tensorboard) .*|\S+)")
"""A gap and what must not be broken: a word, a quoted phrase, or a command up to the end of its line."""

NARROW = 30
"""Fewest columns for a description next to its key; a narrower one starts on a new line."""


def terminal_width(stream: TextIO | None = None) -> int | None:
    """Return the columns of the terminal. None if the stream is not one."""
    stream = sys.stdout if stream is None else stream
    return shutil.get_terminal_size().columns if stream is not None and stream.isatty() else None


def fit(text: str, width: int | None, column: int | None = None) -> str:
    """Return the lines broken to `width` columns. Longer words and commands stay whole.

    A `width` of None changes nothing. Continued lines start at `column`. None: below the first word of each line, after a bullet.
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
    """Join parts of a line by two blanks, without those at the end that do not fit."""
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
