"""Add the meanings of keys, and the comments of configs/, to Hydra's `--help`."""

import re
from collections.abc import Collection, Iterator, Sequence

from train_anywhere.config.command.compose import CONFIGS, choice_file, choice_files, list_groups
from train_anywhere.config.command.yaml_files import HEADER, read_text
from train_anywhere.config.keys import CUSTOM, defaults, meanings
from train_anywhere.config.other_names import SITE
from train_anywhere.config.schema import Config
from train_anywhere.config.search_terms import plain
from train_anywhere.files.terminal.fit import fit_page, terminal_width

KEYS = "Keys and their defaults\n"
"""The heading of the keys, which end at an empty line; see hydra.yaml."""

LINE = re.compile(r"(?P<indent> *)(?P<key>[\w.]+):(?P<value>.*?)(?:  # (?P<comment>.*))?")


def add_comments(page: str, only: Sequence[str] = ()) -> str:
    """Return the page with the meaning of each key.

    `only` are sections and keys to show without the rest. The project's train.yaml can explain keys that the schema does not know.
    """
    before, heading, after = page.partition(KEYS)
    keys, gap, rest = after.partition("\n\n")
    own = read_comments(read_text(CONFIGS / "train.yaml"))
    known = {**own, **meanings(Config), **dict(choice_comments(keys))}
    lines = [
        append_comment(path + line[line.index(":") :] if path in only else line, known.get(path, ""))
        for path, line, _ in lines_with_keys(keys)
        if not only or any(f"{path}.".startswith(f"{name}.") for name in only)
    ]
    titles = [
        append_comment(f"{group}={choice}", title)
        for group in only
        for choice, title in choice_titles(group).items()
    ]
    text = "\n".join([*titles, *lines])
    return fit_page(text + "\n" if only else before + heading + text + gap + rest, terminal_width())


def keys_about(words: str, keys: Collection[str]) -> list[str]:
    """Return those of `keys` whose name and meaning have all words of a phrase. Empty if they are more than six."""
    wanted = {*plain(words).split()}
    known = meanings(Config)
    words_of = {key: plain(f"{key} {known.get(key, '')}").split() for key in keys if not key.startswith(SITE)}
    found = [key for key, has in words_of.items() if wanted and wanted <= {*has}]
    return found if len(found) <= 6 else []


def sections() -> list[str]:
    """Return the sections of the configuration, and the groups."""
    below = {name for name, value in defaults(Config).items() if isinstance(value, dict)}
    return sorted({*below, *list_groups()} - {"local"})


def read_comments(text: str, prefix: str = "") -> dict[str, str]:
    """Return the comments of a file of configs/, by key."""
    return {f"{prefix}{path}": comment for path, _, comment in lines_with_keys(text) if comment}


def choice_comments(keys: str) -> Iterator[tuple[str, str]]:
    """Yield the comments of the selected choices, such as those of configs/model/cnn.yaml."""
    for path, line, _ in lines_with_keys(keys):
        group, _, last = path.rpartition(".")
        file = choice_file(group, line.partition(":")[2].strip())
        if last == "name" and group and "." not in group and file.is_file():
            text = read_text(file)
            yield from read_comments(text, "" if text.startswith(HEADER) else f"{group}.").items()


def choice_titles(group: str) -> dict[str, str]:
    """Return the first comment of each choice's file, or "". The custom choice is the last."""
    found = {}
    for file in sorted(choice_files(group).values(), key=lambda f: f.stem == CUSTOM):
        lines = read_text(file).removeprefix(f"{HEADER}\n").splitlines()
        found[file.stem] = lines[0].removeprefix("# ") if lines and lines[0].startswith("# ") else ""
    return found


def lines_with_keys(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the dotted key of each line of some YAML, the line and its comment; "" for what a line does not have."""
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        if match := LINE.fullmatch(line):
            depth = len(match["indent"])
            above = [(d, key) for d, key in above if d < depth] + [(depth, match["key"])]
            yield ".".join(key for _, key in above), line, match["comment"] or ""
        else:
            yield "", line, ""


def append_comment(line: str, comment: str) -> str:
    """Append a comment to a line, in one column for short lines."""
    return f"{line:<42}  # {comment}" if comment else line
