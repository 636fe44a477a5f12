"""How the text of a file loses one framework, by the kind of the file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tools.one_framework_sides import Side

Lines = list[str]


def translated(text: str, keep: Side, gone: Side) -> str:
    """What stands for a word of the other side: the default, an example of a site."""
    for pattern, new in gone.instead:
        text = re.sub(pattern, new, text)
    return text


def mark(word: str, side: Side) -> str:
    """Pattern of a mark: a comment `only NAME` or `end NAME`; one that has a line for itself goes with its line."""
    text = rf"{word} {side.name}"
    comment = rf"(?:# {text}$|<!-- {text} -->|{{#-? {text} -?#}})"
    return rf"(?:^[ \t]*{comment}[ \t]*\n|{comment})"


def cut_marks(text: str, keep: Side, gone: Side) -> str:
    """Passages marked as of the other side; of the side that stays, the marks alone."""
    text = re.sub(rf"{mark('only', gone)}[\s\S]*?{mark('end', gone)}", "", text, flags=re.MULTILINE)
    return re.sub(rf"{mark('only', keep)}|{mark('end', keep)}", "", text, flags=re.MULTILINE)


def cut_pairs(text: str, keep: Side, gone: Side) -> str:
    """`lightning, keras` and the like become the name that stays."""
    kept, lost = (
        rf"(?P<{q}>[\"'`]?)\b{side.name}\b(?:/|-only)?(?P={q})(?![\w.])"
        for q, side in zip("ab", (keep, gone), strict=True)
    )
    between = r"(?:, | \| |\|| or | and | )"
    for one, other in ((keep, gone), (gone, keep)):
        both = rf"\((['\"]){one.name}\1, \1{other.name}\1\)"
        text = re.sub(both, f'("{keep.name}",)', text)  # a tuple of one has a comma
    target = r": (?!\{)[^,{}\n]+"
    text = re.sub(rf"\b{gone.name}{target}, (?={keep.name}: )", "", text)
    text = re.sub(rf"(\b{keep.name}{target}), {gone.name}{target}(?=\}})", r"\1", text)
    text = re.sub(rf"{lost}{between}(?={kept})", "", text, flags=re.IGNORECASE)
    return re.sub(rf"(?P<first>{kept}){between}{lost}", r"\g<first>", text, flags=re.IGNORECASE)


def cut_yaml(text: str, keep: Side, gone: Side) -> str:
    """The target of the other side, on a line of its own or in braces; a line of requirements."""
    text = re.sub(rf"^ +{gone.name}: [\w.]+\n", "", text, flags=re.MULTILINE)
    text = re.sub(rf"^ +- -r requirements/{gone.name}.*\n", "", text, flags=re.MULTILINE)
    return "".join(
        line
        for line in text.splitlines(True)
        if not (line.startswith("        python") and gone.words.search(line))
    )


def cut_lines(text: str, keep: Side, gone: Side) -> str:
    """Each line that names it, of a list of packages."""
    return "".join(line for line in text.splitlines(True) if not gone.words.search(line))


def cut_markdown(text: str, keep: Side, gone: Side) -> str:
    """Sections with a heading of the other side's, rows of tables and lines of code that name it."""
    kept, code, section = [], False, True
    for line in text.splitlines(True):
        if line.startswith("```"):
            code = not code
        elif line.startswith("#") and not code:
            section = line.strip("# \n") not in gone.parts
        row = code or line.startswith("|")
        if section and not (row and gone.words.search(line)):
            kept.append(line)
    return "".join(kept)


def cut_python(text: str, keep: Side, gone: Side) -> str:
    """Definitions named after the other side; rows and cases that name it."""
    text = re.sub(r" \| ([A-Z]\w+)\b", lambda union: "" if gone.names(union[1]) else union[0], text)
    tree, lines = ast.parse(text), text.splitlines(True)
    lost = set(examples(tree, lines, gone))
    for first, last in (*definitions(tree, gone), *rows(tree, lines, gone), *cases(tree, lines, gone)):
        lost.update(range(first, last + 1))
    return "".join(line for number, line in enumerate(lines, 1) if number not in lost)


def examples(tree: ast.Module, lines: Lines, gone: Side) -> Iterator[int]:
    """Lines of tables and of code in the docstring of the module."""
    if ast.get_docstring(tree) is not None:
        for number in range(tree.body[0].lineno + 1, (tree.body[0].end_lineno or 0) + 1):
            if lines[number - 1].startswith("    ") and gone.words.search(lines[number - 1]):
                yield number


def definitions(tree: ast.AST, gone: Side) -> Iterator[tuple[int, int]]:
    """First and last line of each function and class named after the side, with its decorators."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and gone.names(node.name):
            yield min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.end_lineno or 0


def rows(tree: ast.AST, lines: Lines, gone: Side) -> Iterator[tuple[int, int]]:
    """First and last line of each row of a table that names the side: an element that has its lines for itself."""
    for node in ast.walk(tree):
        for first, last in elements(node):
            end = last.end_lineno or 0
            begins = lines[first.lineno - 1].encode()[: first.col_offset].strip()
            ends = lines[end - 1].encode()[last.end_col_offset :].decode()
            whole = "".join(lines[first.lineno - 1 : end])
            if not begins and re.fullmatch(r",\s*(#.*)?\n?", ends) and gone.words.search(whole):
                yield first.lineno, end


def elements(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """First and last expression of each element."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            yield key or value, value
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        for element in node.slice.elts:
            yield element, element
    elif isinstance(node, ast.List | ast.Set) or (isinstance(node, ast.Tuple) and is_table(node)):
        for element in node.elts:
            yield element, element


def is_table(node: ast.Tuple) -> bool:
    """Whether a tuple is a table and no row: all its elements are of one kind, and no plain values."""
    return len({type(e) for e in node.elts}) == 1 and isinstance(
        node.elts[0], ast.Tuple | ast.Call | ast.Starred
    )


def cases(tree: ast.AST, lines: Lines, gone: Side) -> Iterator[tuple[int, int]]:
    """First and last line of each case of a `match` whose pattern names the side."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Match):
            for case in node.cases:
                if gone.words.search(lines[case.pattern.lineno - 1]):
                    yield case.pattern.lineno, case.body[-1].end_lineno or 0


def cut_tests(text: str, keep: Side, gone: Side) -> str:
    """Tests, and what stands beside them, that name the other side; then what needs any of that; "" if no test is left."""
    tree, lines = ast.parse(text), text.splitlines(True)
    kept, lost = tree.body[has_docstring(tree) :], []
    names: set[str] = set()
    while found := [n for n in kept if names & used(n) or gone.words.search(source(n, lines))]:
        kept = [node for node in kept if node not in found]
        lost += found
        names |= set().union(*map(defined, found))
    if not any(name.startswith("test") for node in kept for name in defined(node)):
        return ""
    numbers = {number for node in lost for number in range(first_line(node), (node.end_lineno or 0) + 1)}
    return "".join(line for number, line in enumerate(lines, 1) if number not in numbers)


def has_docstring(tree: ast.Module) -> bool:
    """Whether the first statement is one."""
    return ast.get_docstring(tree) is not None


def first_line(node: ast.stmt) -> int:
    """Of a statement with its decorators."""
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])


def source(node: ast.stmt, lines: Lines) -> str:
    """The text of a statement."""
    return "".join(lines[first_line(node) - 1 : node.end_lineno])


def defined(node: ast.stmt) -> set[str]:
    """Names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def used(node: ast.stmt) -> set[str]:
    """Names that it reads, fixtures included."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return names | {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
