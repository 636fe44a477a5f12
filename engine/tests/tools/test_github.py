"""Files that GitHub and editors read have their keys and name existing things.

Sources: docs.github.com ("Syntax for GitHub's form schema", "Workflow syntax for GitHub Actions", "Dependabot options reference"),
citation-file-format.github.io, containers.dev; checked 2026-11.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from train_anywhere.files import ROOT

GITHUB = ROOT / ".github"
FORMS = [path for path in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) if path.stem != "config"]
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
KINDS = {"markdown", "input", "textarea", "dropdown", "checkboxes"}


def read(path: Path) -> Any:
    return yaml.load(path.read_text(), yaml.BaseLoader)  # `on` stays a word, as GitHub reads it


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_forms_have_the_keys_that_github_needs(path: Path) -> None:
    form = read(path)
    assert (
        {"name", "description", "body"} <= form.keys() <= {"name", "description", "body", "labels", "title"}
    )
    fields = form["body"]
    assert len({field["id"] for field in fields}) == len(fields)
    for field in fields:
        assert field["type"] in KINDS
        assert field["attributes"]["label"]
        assert set(field.get("validations", {}).values()) <= {"true", "false"}
        assert ("options" in field["attributes"]) == (field["type"] in ("dropdown", "checkboxes"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_targets_that_exist_and_tests_as_root(path: Path) -> None:
    workflow = read(path)
    assert workflow["on"] and workflow["permissions"] == {"contents": "read"}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for job in workflow["jobs"].values():
        assert job["runs-on"] and int(job["timeout-minutes"]) < 360  # GitHub's own limit
        # other systems have no Slurm
        elsewhere = path.stem in ("docs", "release") or "matrix" in job["runs-on"]
        assert elsewhere or "--privileged" in job["container"]["options"]
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])
        # a tag may be moved to another commit
        assert all(
            re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"]) for step in job["steps"] if "uses" in step
        )
        made = [step["run"].split()[1] for step in job["steps"] if step.get("run", "").startswith("make ")]
        assert (path.stem in made or path.stem == "release") and set(made) <= targets, made
    assert not re.search(r"uses: (?!.*@[0-9a-f]{40}  # v\d+\.\d+\.\d+$)", path.read_text(), re.M)


def test_all_versions_are_the_same() -> None:
    version = tomllib.loads((ROOT / "engine/pyproject.toml").read_text())["project"]["version"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if project["name"] != "my-training":
        pytest.skip("a renamed project has its own version")
    assert project["version"] == version
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == version
    titles = [f"{version} - {citation['date-released']}", f"[{version}] - {citation['date-released']}"]
    if ".dev" in version:
        titles = ["Unreleased", "[Unreleased]"]
    for title, log in zip(titles, ("engine/CHANGELOG.md", "CHANGELOG.md"), strict=True):
        assert f"\n## {title}\n" in (ROOT / log).read_text()


def test_the_container_copies_and_runs_what_is_there() -> None:
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    dockerfile = (ROOT / ".devcontainer" / container["build"]["dockerfile"]).read_text()
    copied = re.findall(r"^COPY (\S+)", dockerfile, re.M)
    assert copied and all((ROOT / name).is_file() for name in copied)
    assert "--privileged" in container["runArgs"]  # namespaces of the testbed


def test_links_of_the_pages_at_the_top_lead_somewhere() -> None:
    pages = (
        *("AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", ".github/pull_request_template.md"),
        *("engine/CONTRIBUTING.md", "engine/README.md"),
    )
    links = [
        (ROOT / page).parent / link
        for page in pages
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    ]
    assert links and [link for link in links if not link.exists()] == []


def test_the_page_for_agents_is_short_and_names_what_is_there() -> None:
    text = (ROOT / "AGENTS.md").read_text()
    assert text.count("\n") <= 25
    targets = set(re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= {word for line in targets for word in line.split()}
    named = re.findall(r"`((?:configs|src|slurm|engine|tests)/[\w/.]*)`", text)
    assert named and [name for name in named if not (ROOT / name).exists()] == []
