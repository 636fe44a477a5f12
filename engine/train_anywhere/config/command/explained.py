"""Hydra's page for `--help` with the comments of configs/ beside the keys: Hydra itself loses them."""

import re
from collections.abc import Iterator
from pathlib import Path

from train_anywhere.config.command.compose import CONFIGS

KEYS = "Keys and their defaults\n"
"""The line of the page after which the keys come, up to an empty line; see hydra.help in configs/train.yaml."""

LINE = re.compile(r"(?P<indent> *)(?P<key>[\w.]+):(?P<value>.*?)(?:  # (?P<comment>.*))?")


def explained(page: str) -> str:
    """The page with a comment behind each key that has one."""
    before, heading, after = page.partition(KEYS)
    keys, gap, rest = after.partition("\n\n")
    known = {**comments(CONFIGS / "train.yaml"), **dict(chosen(keys))}
    lines = [with_comment(line, known.get(path, "")) for path, line in paths(keys)]
    return before + heading + "\n".join(lines) + gap + rest


def comments(file: Path, group: str = "") -> dict[str, str]:
    """The comments of a file of configs/, by key: {'trainer.max_steps': 'optimizer steps'}."""
    found = {}
    for path, line in paths(file.read_text(encoding="utf-8-sig")):
        match = LINE.fullmatch(line)
        if match and match["comment"]:
            found[f"{group}.{path}" if group else path] = match["comment"]
    return found


def chosen(keys: str) -> Iterator[tuple[str, str]]:
    """The comments of the choices that are in use: of `model.name: cnn` those of configs/model/cnn.yaml."""
    for path, line in paths(keys):
        group, _, last = path.rpartition(".")
        file = CONFIGS / group / f"{line.partition(':')[2].strip()}.yaml"
        if last == "name" and group and "." not in group and file.is_file():
            text = file.read_text(encoding="utf-8-sig")
            yield from comments(file, "" if text.startswith("# @package _global_") else group).items()


def paths(text: str) -> Iterator[tuple[str, str]]:
    """Each line of some YAML with the key that it is of; "" where it has none."""
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        if match := LINE.fullmatch(line):
            depth = len(match["indent"])
            above = [(d, key) for d, key in above if d < depth] + [(depth, match["key"])]
            yield ".".join(key for _, key in above), line
        else:
            yield "", line


def with_comment(line: str, comment: str) -> str:
    """The comments of short lines stand in one column."""
    return f"{line:<42}  # {comment}" if comment else line
