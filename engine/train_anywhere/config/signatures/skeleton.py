"""Remove the bodies of functions from source, so that it parses faster: 5 ms instead of 37 ms for 3,000 lines.

Lines keep their numbers.
"""

import re

_STRINGS_AND_COMMENTS = re.compile(
    r'"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""'
    r"|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''"
    r'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
    r"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'"
    r"|\#[^\n]*",
    re.DOTALL,
)
_DEF = re.compile(r"([ \t]*)(?:async[ \t]+)?def[ \t]+(\w+)")
_CONSTRUCTORS = {"__init__", "__new__"}
"""Functions whose bodies are kept, since they show the use of `**kwargs`."""


def make_skeleton(text: str) -> str:
    """Return the source with `...` for the body of each function but constructors.

    Bodies are found by indentation, without a parser. The result for an unusual layout may be invalid; parse the whole source then.
    """
    lines = text.split("\n")
    bare = _STRINGS_AND_COMMENTS.sub(_blank, text).split("\n")
    at = 0
    while at < len(bare):
        found = _DEF.match(bare[at])
        if not found:
            at += 1
            continue
        body = _end_of_signature(bare, at)
        at = body
        while at < len(bare) and (not bare[at].strip() or _is_indented(bare[at], found[1])):
            at += 1
        if found[2] not in _CONSTRUCTORS and any(map(str.strip, bare[body:at])):
            lines[body:at] = [f"{found[1]} ...", *[""] * (at - body - 1)]
    return "\n".join(lines)


def _blank(found: "re.Match[str]") -> str:
    """Return a placeholder for a string or comment, with the same number of lines."""
    return "" if found[0].startswith("#") else "_" + "\n" * found[0].count("\n")


def _end_of_signature(bare: list[str], at: int) -> int:
    """Return the index of the line after the signature that starts at `at`."""
    depth = 0
    while at < len(bare):
        line = bare[at]
        depth += sum(map(line.count, "([{")) - sum(map(line.count, ")]}"))
        at += 1
        if depth <= 0:
            break
    return at


def _is_indented(line: str, indent: str) -> bool:
    return line.startswith(indent) and line[len(indent) : len(indent) + 1] in (" ", "\t")
