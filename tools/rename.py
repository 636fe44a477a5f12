"""Give the project a name of your own: `make rename NAME="My project"`.

The name stands in the title of the README, in the citation and on the site as it is typed, and as `my-project` where a package, an
environment or a folder has it. Running it again renames again; nothing is committed: `git diff` shows what happened. Of the repository's
address, which a badge of the tests needs, nothing here knows: CONTRIBUTING.md has the line.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

TITLE = r"^# (.+)$"
"""Pattern of the README's first line, which alone says what the title is now."""

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
"""Where the name stands, and how."""


def main(arguments: list[str]) -> int:
    """Write the new name; returns the exit code: 0, or 2 where nothing was done."""
    title = arguments[0].strip() if len(arguments) == 1 else ""
    if problem := unusable(title):
        return refuse(problem)
    old = re.search(TITLE, (ROOT / "README.md").read_text(), re.MULTILINE)
    if old is None:
        return refuse("README.md has no title, a line that begins with '# ', which says the name until now.")
    slug = re.search(SLUG, (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    before, after = names(old[1]), names(title)
    before |= {"slug": slug[1]} if slug else {}
    texts = {place: changed(place, before, after) for place in PLACES if (ROOT / place).exists()}
    for place, text in texts.items():
        if text != (ROOT / place).read_text():
            (ROOT / place).write_text(text)
            print(place)
    print(f"\nThe project is called {title} ({after['slug']}). Look at `git diff`, then commit it.")
    return 0


def refuse(sentence: str) -> int:
    """Say why nothing was done."""
    print(f"error: {sentence}", file=sys.stderr)
    return 2


def unusable(title: str) -> str:
    """Why the name can't be one of a package too; "" if it can."""
    if not title:
        return 'name the project: make rename NAME="My project"'
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9 _.-]*[A-Za-z0-9]", title):
        return (
            f"NAME={title} can't be the name of a package; use letters, digits, spaces, '.', '_' and '-', "
            'beginning with a letter: make rename NAME="My project"'
        )
    return ""


def names(title: str) -> dict[str, str]:
    """The title, and what a package is called after it: "My project", `my-project`."""
    return {"title": title, "slug": re.sub(r"[ _.-]+", "-", title).lower()}


def changed(place: str, before: dict[str, str], after: dict[str, str]) -> str:
    """The text of a file with the new name."""
    text = (ROOT / place).read_text()
    for form in PLACES[place]:
        text = text.replace(form.format(**before), form.format(**after))
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
