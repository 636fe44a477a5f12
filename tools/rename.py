"""Rename the project: `make rename NAME="My project"`.

README, citation and site get the name as typed; packages, environments and folders get `my-project`. It can be run again, and commits
nothing: `git diff` shows the changes. The address of the repository, which a badge of the tests needs, stays: see CONTRIBUTING.md.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

TITLE = r"^# (.+)$"
"""Pattern of the README's first line, from which the current title is read."""

SLUG = r'^name = "(.+)"$'
"""Pattern of the project's name in pyproject.toml."""

PLACES = {
    "README.md": ("# {title}\n",),
    "docs/index.md": ("# {title}\n",),
    "CITATION.cff": ('title: "{title}"', "The {title} authors"),
    "mkdocs.yml": ("site_name: {title}\n",),
    "pyproject.toml": ('name = "{slug}"',),
    "environment.yml": ("name: {slug}\n",),
    ".devcontainer/devcontainer.json": ('"name": "{slug}"',),
}
"""Files with the name, and the strings in which they have it."""


def main(arguments: list[str]) -> int:
    """Write the new name; return the exit code: 0, or 2 if nothing was written."""
    title = arguments[0].strip() if len(arguments) == 1 else ""
    if problem := name_problem(title):
        return refuse(problem)
    old = re.search(TITLE, (ROOT / "README.md").read_text(), re.MULTILINE)
    if old is None:
        return refuse(
            "README.md has no title (a line that starts with '# '), from which the current name is read; add it."
        )
    slug = re.search(SLUG, (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    before, after = name_forms(old[1]), name_forms(title)
    before |= {"slug": slug[1]} if slug else {}
    texts = {place: replace_name(place, before, after) for place in PLACES if (ROOT / place).exists()}
    for place, text in texts.items():
        if text != (ROOT / place).read_text():
            (ROOT / place).write_text(text)
            print(place)
    print(f"\nThe project is called {title} ({after['slug']}). Look at `git diff`, then commit it.")
    return 0


def refuse(sentence: str) -> int:
    """Print why nothing was written; return the exit code."""
    print(f"error: {sentence}", file=sys.stderr)
    return 2


def name_problem(title: str) -> str:
    """Return why the name can't also be that of a package; "" if it can."""
    if not title:
        return 'name the project: make rename NAME="My project"'
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9 _.-]*[A-Za-z0-9]", title):
        return (
            f"NAME={title} can't be the name of a package; use letters, digits, spaces, '.', '_' and '-', "
            'starting with a letter: make rename NAME="My project"'
        )
    return ""


def name_forms(title: str) -> dict[str, str]:
    """Return the title "My project" and the slug "my-project"."""
    return {"title": title, "slug": re.sub(r"[ _.-]+", "-", title).lower()}


def replace_name(place: str, before: dict[str, str], after: dict[str, str]) -> str:
    """Return the contents of a file with the new name."""
    text = (ROOT / place).read_text()
    for form in PLACES[place]:
        text = text.replace(form.format(**before), form.format(**after))
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
