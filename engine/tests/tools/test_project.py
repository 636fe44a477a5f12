"""`make project` writes a user's project that trains and gets updates."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tools import engine_sources as sources
from tools import project as template
from tools.testing.processes import wait_until
from tools.testing.projects import git, run_command
from train_anywhere.files import ROOT

pytestmark = pytest.mark.git

NEXT = "0.1.1.dev7"
COMMANDS = ("train", "evaluate", "run", "jobs")


def make(folder: Path, *words: str, at: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = ("make", "--no-print-directory", "project", f"DIR={folder}", *words, f"PYTHON={sys.executable}")
    return run_command(at, *command)


def install(project: Path) -> Path:
    """Make an environment that sees this one's packages. Return its bin folder."""
    venv.create(project / ".venv", symlinks=True)
    packages = next((project / ".venv").glob("lib/python*/site-packages"))
    (packages / "all.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    words = ("--no-deps", "--no-index", "--require-hashes", "-qr", "requirements/engine.txt")
    done = call(project, "-m", "pip", "install", *words)
    assert done.returncode == 0, done.stderr
    return project / ".venv" / "bin"


def call(
    project: Path, *words: str, cwd: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | more
    command = [project / ".venv/bin/python", *words]
    return subprocess.run(
        command, cwd=cwd or project, env=environ, capture_output=True, text=True, timeout=600
    )


def count_lines(project: Path) -> int:
    names = git(project, "ls-files").splitlines()
    own = [name for name in names if not name.startswith(("requirements/locks/", "wheels/"))]
    return sum((project / name).read_bytes().count(b"\n") for name in own)


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that no test changes."""
    place = tmp_path_factory.mktemp("projects") / "mit Leerzeichen und Ümlaut"
    done = make(place, "NAME=Mine")
    assert f"cd {shlex.quote(str(place))} && git commit" in done.stdout, done.stderr
    return place


@pytest.mark.parametrize("framework, other", [("lightning", "keras"), ("keras", "lightning")])
@pytest.mark.quick("keras-lightning")
def test_a_project_has_what_was_chosen(tmp_path: Path, framework: str, other: str) -> None:
    project = tmp_path / "mine"
    done = make(project, "NAME=Protein folds 2", f"FRAMEWORK={framework}", "CLUSTER=lumi")
    assert done.returncode == 0, done.stderr
    assert "git commit -qm Start && make train" in done.stdout
    assert count_lines(project) <= 3300
    assert len((project / "README.md").read_text().splitlines()) <= 40
    names = git(project, "ls-files").splitlines()
    assert [name for name in names if re.search(rf"(^|/){other}[./-]", name)] == []
    presets = {Path(name).stem for name in names if name.startswith("configs/cluster/")}
    assert presets == {"local", "slurm", "lumi"}
    lock = f"requirements/locks/{framework}-cpu.txt"
    assert {"src/train.py", lock, ".train-anywhere", "LICENSE"} <= {*names}
    assert not [name for name in names if name.startswith(("engine/", "docs/", ".github/"))]
    settings = (project / "pyproject.toml").read_text()
    assert (
        'name = "protein-folds-2"\nversion = "0.1.0"\ndescription = "Protein folds 2"' in settings
        and "engine/" not in settings
    )
    assert (project / "README.md").read_text().startswith("# Protein folds 2\n")
    left = [n for n in names if Path(n).suffix in (".md", ".py", ".yaml") and "{" in n]
    assert left == [] and not re.search(r"\{(title|pages|example)\}", (project / "README.md").read_text())
    targets = set(re.findall(r"^([a-z-]+):", (project / "Makefile").read_text(), re.M))
    for page in ("README.md", "AGENTS.md"):
        text = (project / page).read_text()
        assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets
        for link in re.findall(r"\]\(([^)]+)\)", text):
            assert "://" in link or (project / link).exists(), link
    checked = run_command(project, sys.executable, "-m", "ruff", "check", "--no-cache", ".")
    assert checked.stdout.startswith("All")
    install(project)
    short = ("trainer.fast_dev_run=true", f"paths.results={tmp_path / 'results'}")
    on = ("dry_run=true", "cluster.check=warn")
    for words in ((), ("cluster=neuron", *on), ("cluster=sockeye_pbs", *on)):  # the last only from the engine
        done = call(project, "src/train.py", *short, *words)
        assert done.returncode == 0, done.stdout + done.stderr
    assert f'"framework": "{framework}"' in (tmp_path / "results/latest/run.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["lightning", "keras"])
def test_its_tests_pass(tmp_path: Path, framework: str) -> None:
    assert make(tmp_path / "mine", f"FRAMEWORK={framework}").returncode == 0
    binary = install(tmp_path / "mine")
    done = run_command(tmp_path / "mine", "make", "test", f"bin={binary}", "CI=", "ARGS=-q -n 1")
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


REFUSED = {
    ("DIR=", "NAME=a"): "name the folder: make project DIR=../mine",
    ("NAME=1é",): "NAME=1é can't be the name of a package",
    ("FRAMEWORK=jax",): "FRAMEWORK=jax is not known; use lightning, keras or all.",
    ("CLUSTER=neuron,moon",): "CLUSTER=moon is not a preset; use one of",
    ("FROM=nowhere",): "FROM=nowhere is not an engine",
    ("FROM=0.1.0",): "FROM=0.1.0 is a version, and train-anywhere has no release yet",
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_refusal_is_one_message_and_writes_nothing(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = make(tmp_path / "mine", *words)
    assert done.returncode == 2 and not list(tmp_path.iterdir()), done.stderr
    first, *rest = done.stderr.splitlines()
    assert first.startswith(f"error: {REFUSED[words]}") and len(rest) == 1  # and the line of make


def test_a_folder_that_can_not_be_that_of_a_project_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, says in (
        (tmp_path, "is not an empty folder"),
        (tmp_path / "a/b", "there is no folder"),
        (ROOT / "inside", "is inside of"),
        (Path("/proc/mine"), "nothing was written"),
    ):
        done = make(place)
        assert done.returncode == 2 and says in done.stderr and len(done.stderr.splitlines()) == 2
        assert place == tmp_path or not place.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_commands_are_equal_and_work_from_any_folder(tmp_path: Path) -> None:
    texts = {name: (ROOT / f"src/{name}.py").read_text() for name in COMMANDS if name != "train"}
    assert len({text.replace(name, "NAME") for name, text in texts.items()}) == 1
    assert all(len(text.splitlines()) <= 6 for text in texts.values())
    end = texts["run"].replace("run", "train").partition("\n\n")[2]
    assert (ROOT / "src/train.py").read_text().endswith(end)
    (tmp_path / "link").symlink_to(ROOT)
    for name in COMMANDS:
        for folder in (ROOT / "src", tmp_path / "link" / "src"):
            command = [sys.executable, str(folder / f"{name}.py"), "--help"]
            environ = {**os.environ, "PYTHONSAFEPATH": "1"}
            environ.pop("PYTHONPATH", None)
            done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
            assert done.returncode == 0 and name in done.stdout, done.stderr


ORIGINS = {
    "https://github.com/me/repo.git": "https://github.com/me/repo/blob/HEAD/docs",
    "git@github.com:me/repo": "https://github.com/me/repo/blob/HEAD/docs",
    "https://me:secret@gitlab.site.edu/a/b/repo.git": "https://gitlab.site.edu/a/b/repo/-/blob/HEAD/docs",
    "ssh://git@git.site.edu:2222/a/repo.git": "https://git.site.edu/a/repo/blob/HEAD/docs",
    "/home/me/repo": "",
    "file:///home/me/repo": "",
    "../repo": "",
    "me@login.site.edu:/home/me/repo.git": "",
    "ssh://me@login.site.edu/home/me/repo.git": "",
    "git@login.site.edu:/srv/me/repo.git": "",
}


@pytest.mark.parametrize("origin", ORIGINS)
def test_pages_have_a_web_address_or_none(tmp_path: Path, origin: str) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "remote", "add", "origin", origin)
    assert template.find_pages(tmp_path) == ORIGINS[origin]


OTHERS = {
    "lightning": r"keras|tensorflow|mirrored|FRAMEWORK=NAME",
    "keras": r"lightning|torch|\bddp\b|fsdp|FRAMEWORK=NAME",
    "all": r"a^",
}
"""Patterns that match words of the other framework."""


@pytest.mark.parametrize("origin", ["https://github.com/me/repo.git", "/home/me/repo"])
def test_a_project_names_no_path_of_the_machine(tmp_path: Path, origin: str) -> None:
    pages = ORIGINS[origin]
    for framework in ("lightning", "keras", "all"):
        choices = {"title": "Mine", "framework": framework, "cluster": "", "pages": pages or f"{ROOT}/docs"}
        rendered = template.render(ROOT, choices).items()
        made = {name: content.decode(errors="replace") for name, content in rendered}
        assert [name for name, text in made.items() if str(ROOT) in text or "/home/me" in text] == []
        own = {
            name: text
            for name, text in made.items()
            if not name.startswith((".vscode/", "requirements/locks/"))
        }
        assert [n for n, text in own.items() if re.search(OTHERS[framework], n + text, re.I)] == []
        assert json.loads(made["notebooks/run.ipynb"])["cells"]
        links = [
            link for name in made if name.endswith(".md") for link in re.findall(r"\]\(([^)]+)\)", made[name])
        ]
        assert all(link in made or link.startswith("https://") for link in links), links
        assert bool(pages) == any(link.startswith(pages or "?") for link in links)
        assert bool(pages) != (
            "`docs/how-to/your-code.md`" in made["README.md"] and "are pages of the" in made["README.md"]
        )


def test_the_wheel_of_the_same_sources_has_the_same_bytes(tmp_path: Path, mine: Path) -> None:
    """Also with another umask, other permissions and other times of the files."""
    before = os.umask(0o77)
    try:
        copy = sources.fetch_sources(str(ROOT), tmp_path, template=True)
        (copy / "README.md").chmod(0o600)
        built = sources.build(copy, tmp_path / "out")
    finally:
        os.umask(before)
    for path in built:
        assert path.read_bytes() == (mine / "wheels" / path.name).read_bytes()
    package = ROOT / "engine" / sources.PACKAGE
    names = zipfile.ZipFile(built[0]).namelist()
    inside = {name for name in names if name.startswith(f"{sources.PACKAGE}/")}
    assert inside == {f"{sources.PACKAGE}/{path.relative_to(package)}" for path in sources.files(package)}


def test_a_killed_call_leaves_nothing_after_the_next_one(tmp_path: Path) -> None:
    """Also after one that is refused."""
    command = [sys.executable, "tools/project.py", "make", str(tmp_path / "mine"), "", "", "", ""]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as first:
        wait_until((tmp_path / ".mine.engine/engine/train_anywhere").is_dir)
        first.send_signal(signal.SIGSTOP)
        second = make(tmp_path / "mine")
        assert second.returncode == 2 and "another `make project` is writing" in second.stderr
        first.kill()
    assert [path.name for path in tmp_path.iterdir()] == [".mine.engine"]
    assert "moon is not a preset" in make(tmp_path / "mine", "CLUSTER=moon").stderr
    assert not [*tmp_path.iterdir()]


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A newer template, as a folder with the product's files and a newer engine."""
    made = tmp_path / "newer"
    run_command(ROOT, sys.executable, "tools/project.py", "copy", str(made))
    shutil.copytree(ROOT / "engine", made / "engine", ignore=shutil.ignore_patterns("__pycache__"))
    replace(made / "engine/pyproject.toml", sources.version_of(ROOT / "engine"), NEXT)
    return made


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def update(project: Path, source: Path) -> subprocess.CompletedProcess[str]:
    return call(project, "wheels/template.py", "engine.py", "update", str(source))


def test_an_update_merges_what_was_edited(tmp_path: Path, newer: Path, mine: Path) -> None:
    """Unedited files are replaced, edited ones merged, conflicts named, others stay."""
    project = Path(shutil.copytree(mine, tmp_path / "mine", symlinks=True))
    install(project)
    git(project, "commit", "-qm", "start")
    with (project / "configs/model/cnn.yaml").open("a") as file:
        file.write("# mine\n")
    replace(project / "configs/data/digits.yaml", "batch_size: 96", "batch_size: 48")
    (project / "configs/experiment/debug.yaml").unlink()
    (project / "configs/model/own.yaml").write_text("name: own\n")
    for name, old, new in (
        ("configs/model/mlp.yaml", "name: mlp", "name: mlp  # better"),
        ("configs/model/cnn.yaml", "name: cnn", "# theirs\nname: cnn"),
        ("configs/data/digits.yaml", "batch_size: 96", "batch_size: 192"),
        ("configs/experiment/debug.yaml", "true", "true  # changed"),
    ):
        replace(newer / name, old, new)
    (newer / "src/models/lightning/extra.py").write_text('"""A new file."""\n')
    (newer / "configs/model/gpt_7b.yaml").unlink()
    copy = sources.fetch_sources(str(newer), tmp_path, template=True)
    wheel, sdist = sources.build(copy, tmp_path / "built")

    done = update(project, wheel)  # its sdist is next to it
    assert done.returncode == 2 and "edits that git does not have" in done.stderr, done.stdout + done.stderr
    assert "configs/data/digits.yaml" in done.stderr
    git(project, "add", "-A")
    git(project, "commit", "-qm", "edits")
    done = update(project, sdist)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.findall(r"^conflict in (\S+):", done.stderr, re.M) == ["configs/data/digits.yaml"]
    assert f"-> {NEXT}" in done.stdout
    read = {
        name: (project / name).read_text()
        for name in git(project, "ls-files", "configs/*/*.yaml").split()
        if (project / name).exists()
    }
    assert "# better" in read["configs/model/mlp.yaml"]
    assert "# mine" in read["configs/model/cnn.yaml"] and "# theirs" in read["configs/model/cnn.yaml"]
    assert "<<<<<<< yours\nbatch_size: 48" in read["configs/data/digits.yaml"]
    assert "configs/experiment/debug.yaml" not in read and "configs/model/gpt_7b.yaml" not in read
    assert read["configs/model/own.yaml"] == "name: own\n"
    assert (project / "src/models/lightning/extra.py").exists()
    assert f"train_anywhere-{NEXT}-" in (project / "requirements/engine.txt").read_text()
    assert f'"version": "{NEXT}"' in (project / ".train-anywhere").read_text()

    git(project, "checkout", "configs/data/digits.yaml")  # keeps the own value
    git(project, "add", "-A")
    git(project, "commit", "-qm", "update")
    done = update(project, wheel)  # the same again
    assert done.stdout == f"train-anywhere {NEXT}: nothing new.\n", done.stdout + done.stderr
    assert git(project, "status", "--short") == ""
    lone = shutil.copy(wheel, tmp_path)
    done = update(project, lone)
    assert done.returncode == 2 and "lacks its sdist" in done.stderr
