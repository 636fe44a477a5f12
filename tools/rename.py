"""Rename the project: `make rename NAME="My project" REPO=owner/name`; one of the two is enough.

README, citation and site get the name as typed; packages, environments and folders get `my-project`. REPO is the repository
on GitHub: it fills the badges of the README, its link "Use this template", and the addresses in pages, site and citation.
It can be run again, and commits nothing: `git diff` shows the changes. The next call finishes one that was killed.
"""

import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PLAN = ROOT / ".rename.json"
"""The changed files of a rename, with their texts before and after; a killed rename leaves it."""

TITLE = r"^# (.+)$"
"""Pattern of the README's first line, from which the current title is read."""

SLUG = r'^name = "(.+)"$'
"""Pattern of the project's name in pyproject.toml."""

PLACES = {
    "README.md": ("# {title}\n", "`conda activate {slug}`"),
    "docs/index.md": ("# {title}\n",),
    "CITATION.cff": ('title: "{title}"', "The {title} authors"),
    "mkdocs.yml": ("site_name: {title}\n",),
    "pyproject.toml": ('name = "{slug}"',),
    "environment.yml": ("name: {slug}\n",),
    ".devcontainer/devcontainer.json": ('"name": "{slug}"',),
}
"""Files with the name, and the strings in which they have it."""

BADGES = """\
[![tests](https://github.com/{repo}/actions/workflows/test.yml/badge.svg)](https://github.com/{repo}/actions/workflows/test.yml)
[![license](https://img.shields.io/github/license/{repo})](LICENSE)
![Python 3.11 | 3.12 | 3.13](https://img.shields.io/badge/python-3.11_%7C_3.12_%7C_3.13-blue)
![Lightning {lightning}](https://img.shields.io/badge/Lightning-{lightning}-792ee5)
![Keras {keras}](https://img.shields.io/badge/Keras-{keras}-d00000)
**[Use this template](https://github.com/{repo}/generate)**
"""
"""Lines of the README between its two comments with "badges"."""

ADDRESSES = {
    "README.md": (r"(<!-- badges.*-->\n)(?:.*\n)*?(?=<!-- /badges -->)", r"\g<1>{badges}"),
    "mkdocs.yml": (
        r"(site_description: .*\n)(?:repo_url: .*\n)?",
        r"\g<1>repo_url: https://github.com/{repo}\n",
    ),
    "CITATION.cff": (
        r"(license: .*\n)(?:repository-code: .*\n)?",
        r"\g<1>repository-code: https://github.com/{repo}\n",
    ),
    "docs/tutorials/first-model.md": (r"(git clone https://github\.com/)\S+", r"\g<1>{repo}"),
}
"""Files with the repository's address: a pattern, and what replaces it."""


def main(arguments: list[str]) -> int:
    """Write the new name and address; return the exit code: 0, or 2 if nothing was written."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    title, repo = (*(argument.strip() for argument in arguments), "", "")[:2]
    if problem := name_problem(title, repo):
        return refuse(problem)
    if PLAN.exists():
        print("An interrupted rename is finished first:")
        write_planned()
    old = re.search(TITLE, (ROOT / "README.md").read_text(), re.MULTILINE)
    if old is None:
        return refuse(
            "README.md has no title (a line that starts with '# '), from which the current name is read; add it."
        )
    title = title or old[1]
    slug = re.search(SLUG, (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    before, after = name_forms(old[1]), name_forms(title)
    before |= {"slug": slug[1]} if slug else {}
    after |= {"slug": before["slug"]} if title == old[1] else {}
    texts = {
        place: write_address(place, replace_name(place, before, after), repo)
        for place in PLACES | ADDRESSES
        if (ROOT / place).exists()
    }
    old_texts = {place: (ROOT / place).read_text() for place in texts}
    plan = {place: (old_texts[place], text) for place, text in texts.items() if text != old_texts[place]}
    replace(PLAN, json.dumps(plan))
    write_planned()
    at = f" at https://github.com/{repo}" if repo else ""
    print(f"\nThe project is called {title} ({after['slug']}){at}. Look at `git diff`, then commit it.")
    return 0


def write_planned() -> None:
    """Write the planned files, except one that has changed since, and forget the plan."""
    for place, (before, after) in json.loads(PLAN.read_text()).items():
        if (ROOT / place).read_text() == before:
            replace(ROOT / place, after)
            print(place)
    PLAN.unlink()


def replace(path: Path, text: str) -> None:
    """Write a file in one step: after a kill it has its old or its new text."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    os.replace(new, path)


def refuse(sentence: str) -> int:
    """Print why nothing was written; return the exit code."""
    print(f"error: {sentence}", file=sys.stderr)
    return 2


def name_problem(title: str, repo: str) -> str:
    """Return why the name can't also be that of a package, or why REPO is not a repository; "" if both can."""
    if not title and not repo:
        return 'name the project: make rename NAME="My project" REPO=owner/name'
    if repo and not re.fullmatch(r"[A-Za-z0-9](-?[A-Za-z0-9])*/[A-Za-z0-9._-]*[A-Za-z0-9_-]", repo):
        return (
            f"REPO={repo} is not a repository on GitHub; use its owner and name: make rename REPO=owner/name"
        )
    if title and not re.fullmatch(r"[A-Za-z][A-Za-z0-9 _.-]*[A-Za-z0-9]", title):
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
    for form in PLACES.get(place, ()):
        text = text.replace(form.format(**before), form.format(**after))
    return text


def write_address(place: str, text: str, repo: str) -> str:
    """Return the contents of a file with the repository's address; without one, as they are."""
    if not repo or place not in ADDRESSES:
        return text
    pattern, replacement = ADDRESSES[place]
    badges = BADGES.format(repo=repo, lightning=version("lightning"), keras=version("keras"))
    badges = re.sub(r".*/badge/\w+--.*\n", "", badges)  # of a framework that is not in requirements/
    return re.sub(pattern, replacement.format(repo=repo, badges=badges), text, count=1)


def version(package: str) -> str:
    """Return the first two numbers of a package's pinned version; "" if it is not pinned."""
    files = (ROOT / "requirements").glob(f"{package}*.txt")
    pinned = re.search(rf"^{package}==(\d+\.\d+)", "".join(file.read_text() for file in files), re.MULTILINE)
    return pinned[1] if pinned else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
