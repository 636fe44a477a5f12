"""Every command in the README and in docs/ passes its checks."""

import getpass
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml

from tools.testing.plugin import require, require_packages
from train_anywhere.commands import jobs, scaling
from train_anywhere.config.command.compose import compose, list_groups
from train_anywhere.files import ENGINE, ROOT

Train = Callable[..., "CompletedProcess[str]"]
PAGES = [
    *(ROOT / name for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *ROOT.glob("engine/CONTRIBUTING.md"),  # not with an installed engine
    *sorted((ROOT / "docs").rglob("*.md")),
]


def command_blocks(page: Path) -> list[list[str]]:
    """Return the lines of each bash block of a page, without comments, joined."""
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(), re.S)
    return [
        [" ".join(map(shlex.quote, shlex.split(line, comments=True))) for line in lines if line.strip()]
        for lines in (block.replace("\\\n", " ").splitlines() for block in blocks)
    ]


def commands(page: Path) -> list[str]:
    """Return the lines of all bash blocks of a page."""
    return [line for block in command_blocks(page) for line in block]


MINE = """
import keras
import lightning

class LitModule(lightning.LightningModule):
    def __init__(self, hidden: int): ...

class KerasModel(keras.Model): ...

def open_data(): ...
"""
"""The module that the pages call `mine`."""

OWN_FILE = re.compile(r'```python title="(\w+\.py)"\n(.*?)```', re.S)
"""A file in the project's folder, used by the commands of the same page."""


def own_files(page: Path) -> dict[str, str]:
    """Return name and content of the Python files that a page asks its reader to write."""
    return dict(OWN_FILE.findall(page.read_text()))


THERE = re.compile(r" on=| --on ")
"""Matches commands that run on another machine, which engine/tests/remote/test_page.py tests."""

ALL = list(
    {
        c: (page.name, c) for page in reversed(PAGES) for c in commands(page) if c and not THERE.search(c)
    }.values()
)
"""Each command of this machine once, with a page that shows it."""

FIRST = ("README.md", "getting-started.md", "first-cluster-job.md", "hyperparameter-search.md")
"""Pages whose commands `make test` tries."""
TRAIN = [
    pytest.param(p, c, marks=[pytest.mark.slow] if p not in FIRST else [])
    for p, c in ALL
    if c.startswith("python src/train.py") and "=src." not in c  # written by the reader: test_tutorials.py
]


@pytest.mark.parametrize("page, command", TRAIN)
def test_train_commands_pass_their_checks(train: Train, tmp_path: Path, page: str, command: str) -> None:
    arguments = [
        a for a in shlex.split(command)[2:] if not a.startswith(("resume=", "init=", "after=")) and a != "-m"
    ]
    if "hydra/sweeper=optuna" in arguments:  # its values stay: they are what is searched
        arguments.insert(0, "-m")
    else:
        arguments = [a.split(",")[0] if a.startswith(("optimizer.lr=", "seed=")) else a for a in arguments]
        packed = any("members_per" in a for a in arguments)  # needs two members
        arguments = (
            ["-m", *(f"{a},2" if packed and a.startswith("seed=") else a for a in arguments)]
            if packed
            else arguments
        )
    split = not any(a.startswith("data.val_fraction=") for a in arguments)
    for folder in ("train", "val") if split else (".",):
        (tmp_path / "pictures" / folder / "cat").mkdir(parents=True)
    if "data=shards" in arguments:
        (tmp_path / "pictures" / "train-0.tar").touch()
    arguments = [f"data.dir={tmp_path}/pictures" if a.startswith("data.dir=") else a for a in arguments]
    (tmp_path / "image").touch()
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "activate").touch()
    here = {"container.image": tmp_path / "image", "cluster.venv": tmp_path / "env"}
    arguments = [f"{key}={here[key]}" if (key := a.partition("=")[0]) in here else a for a in arguments]
    files = {n: text for p in PAGES if p.name == page for n, text in own_files(p).items()}
    for name, text in {"mine.py": MINE, **files}.items():
        (tmp_path / name).write_text(text)
    environment = {"PYTHONPATH": str(tmp_path)}
    done = train(*arguments, "dry_run=true", f"paths.results={tmp_path / 'results'}", env=environment)
    require_packages(done.stderr)
    if "cluster=" in command:  # a page can't know the reader's account
        assert "dry run: nothing was written" in done.stdout, done.stderr
        lacking = [p for p in done.stderr.splitlines() if not p.endswith("problems:")]
        assert all("rejects jobs without" in p for p in lacking), done.stderr
    else:
        assert done.returncode == 0, done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("page, command", [(p, c) for p, c in ALL if c.startswith("python src/run.py")])
def test_run_commands_pass_their_checks(tmp_path: Path, page: str, command: str) -> None:
    words = [word for word in shlex.split(command)[2:] if not word.startswith("after=")]
    command_line = [
        sys.executable,
        ROOT / "src" / "run.py",
        "dry_run=true",
        f"paths.results={tmp_path / 'results'}",
        *words,
    ]
    done = subprocess.run(command_line, capture_output=True, text=True, cwd=ROOT)
    require("needs Horovod, which is not installed" not in done.stderr, done.stderr)
    assert done.returncode == 0 and "dry run: nothing was written" in done.stdout, done.stderr
    assert not (tmp_path / "results").exists()


def console(page: Path) -> list[tuple[str, list[str]]]:
    """Return the commands that a page shows with their output, and the lines of the output."""
    blocks = re.findall(r"```console\n\$ ([^\n]*)\n(.*?)```", page.read_text(), re.S)
    return [(command, printed.splitlines()) for command, printed in blocks]


@pytest.mark.parametrize(
    "command, printed",
    [
        pytest.param(c, printed, id=f"{page.name}-{number}")
        for page in PAGES
        for number, (c, printed) in enumerate(console(page))
        if "dry_run=true" in c or printed[0].startswith("error:")
    ],
)
def test_output_of_dry_runs_and_refusals_is_what_is_printed(
    train: Train, command: str, printed: list[str]
) -> None:
    done = train(*shlex.split(command)[2:])
    output = (done.stdout + done.stderr).replace(str(ROOT), "/home/me/my-project")
    rest = iter(output.replace(f"/scratch/{getpass.getuser()}", "/scratch/me").splitlines())
    assert [line for line in printed if line != "..." and line not in rest] == []
    if "dry_run=true" not in command:
        assert done.returncode == 2 and "..." not in printed and next(rest, None) is None, output


def test_code_in_the_readme_is_that_of_the_examples() -> None:
    shown = re.findall(
        r"\]\((examples/\w+\.py)\)[^`]*```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    assert len(shown) == 2
    for file, code in shown:
        assert code in (ROOT / file).read_text()


def test_numbers_in_the_readme_are_those_of_the_linked_pages() -> None:
    text = (ROOT / "README.md").read_text()
    linked = [
        (number, page)
        for shown, page in re.findall(
            r"\[([^\]]*)\]\((docs/[\w/.-]+)[^)]*\)", text.partition("## Quickstart")[0]
        )
        for number in re.findall(r"\d[\d,.]*", shown)
    ]
    assert len(linked) >= 5
    presets = {*list_groups()["cluster"]}
    known = {("docs/clusters/index.md", str(len(presets - {"local", "current", "slurm", "pbs"})))}
    assert [(n, p) for n, p in linked if (p, n) not in known and n not in (ROOT / p).read_text()] == []
    problems = re.search(r"\[(\d+) problems below\]", text)
    assert problems and f"error: {problems[1]} problems:" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = prose(page)
    links = re.findall(r"\]\(([^)\s]+)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    wrong = []
    for link in {link for link in links if "://" not in link}:
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if file.startswith("engine/") and not (ROOT / "engine").exists():  # the engine is installed
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.S | re.M)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's titles, as the site or GitHub makes them."""
    titles = re.findall(r"^#+ (.*)", prose(page), re.M)
    words = [re.sub(r"[^\w -]", "", title).strip().lower() for title in titles]
    on_site = page.resolve().is_relative_to(ROOT / "docs")
    return {re.sub("[ -]+", "-", title) if on_site else title.replace(" ", "-") for title in words}


def test_each_cluster_has_a_command_in_its_pages() -> None:
    clusters = {*list_groups()["cluster"]} - {"local", "current", "pbs"}
    shown = [command for page in (ROOT / "docs/clusters").glob("*.md") for command in commands(page)]
    assert (
        clusters - {word.removeprefix("cluster=") for command in shown for word in shlex.split(command)}
        == set()
    )


@pytest.mark.parametrize("page, command", [(p, c) for p, c in ALL if c.startswith("python src/jobs.py")])
def test_jobs_commands_serve_a_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    page: str,
    command: str,
) -> None:
    """The commands work on a finished run of this machine, which has no log and no job."""
    run = tmp_path / "results" / "digits" / "20260101-000000-aaaa"
    run.mkdir(parents=True)
    tree = compose(["checkpoint.monitor=val/acc", "checkpoint.mode=max"])
    (run / "config.yaml").write_text(yaml.safe_dump(tree))
    (run / "overrides.txt").write_text("seed=1\n")
    (run / "run.json").write_text('{"format": 2, "state": "completed", "metrics": {"val/acc": 0.5}}')
    (run / "metrics.csv").write_text("step,epoch,val/acc,val/loss\n7,1,0.5,0.25\n")
    (tmp_path / "results" / "latest").symlink_to(run)
    monkeypatch.chdir(tmp_path)
    words = [run.name if word in ("RUN", "SWEEP") else word for word in shlex.split(command)[2:]]
    code = jobs.main([*words, "--results", str(tmp_path / "results")])
    said = capsys.readouterr()
    if words[0] == "plot":
        drawn = "val/" in said.out and (tmp_path / words[-1]).exists()
        assert drawn if find_spec("matplotlib") or words[-1].endswith(".csv") else "pip install" in said.err
    elif "--state" in words:
        assert "no run is selected" in said.out + said.err
    elif words[0] in ("status", "list", "best", "diff"):
        summed = {"--over", "--cost"} & {*words}
        assert code == 0 and (run.name in said.out or summed), said.err
    else:
        assert code == 2 and "ran on this machine" in said.err


@pytest.mark.parametrize(
    "page, command", [(p, c) for p, c in ALL if c.startswith("python -m train_anywhere scaling")]
)
def test_scaling_commands_pass_their_checks(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    page: str,
    command: str,
) -> None:
    words = shlex.split(command)[4:]
    monkeypatch.chdir(tmp_path)
    if words == ["results/scaling/20261123-101502-a1b2"]:
        (run := tmp_path / words[0] / "1x2-ddp" / "20261123-101502-a1b2").mkdir(parents=True)
        (run / "config.yaml").write_text("trainer: {nodes: 1, devices: 2}\n")
        (run / "overrides.txt").write_text("trainer.nodes=1\ntrainer.devices=2\n")
        (run / "run.json").write_text('{"state": "completed"}')
        assert scaling.main(words) == 0 and re.search(r"^1 +2 ", capsys.readouterr().out, re.M)
        return
    code = scaling.main([*words, "dry_run=true", f"paths.results={tmp_path / 'results'}"])
    printed = capsys.readouterr()
    require_packages(printed.err)
    assert code == 0 and "src/train.py " in printed.out, printed.err
    assert not (tmp_path / "results").exists()


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {word for page in PAGES for word in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.M)}
    assert named
    assert named <= targets


def test_every_other_command_is_known() -> None:
    """Commands of other kinds are listed here. A new kind needs its own test first."""
    known = (
        "python src/train.py",
        "python src/run.py",
        "make ",
        "python src/jobs.py",
        "python src/evaluate.py",
        "python -m train_anywhere report",
        "python -m train_anywhere scaling",
        "python -m train_anywhere doctor",
        "python -m train_anywhere index",  # this and the next one: tests/data/test_shards.py
        "'RUN=$(realpath'",
        "mkdir results/latest/code",  # engine/tests/inference/test_alone.py
        "python pack.py",
        "python slurm/new_cluster.py",
        "source .venv/bin/activate",
        "python slurm/testbed.py",  # these and the next ones: tests/template/test_tutorials.py
        "export 'PATH=/var/tmp/slurm-testbed-",
        "sinfo",
        "cp examples/",
        "PYTHONPATH=engine python predict.py",
        "cp engine/train_anywhere/program/bare/slurm/templates/ranks.sh.j2 slurm/templates/",  # this and the next one:
        "sed -i 's/^    srun/    nice srun/' slurm/templates/ranks.sh.j2",  # engine/tests/slurm/test_render.py
        "pip install train-anywhere",  # this and the next ones: engine/tests/program/test_hydra_launcher.py
        "python app.py -m hydra/launcher=anywhere",
        "python -m train_anywhere status",
        "watch -n 5 python src/jobs.py status",  # of the system
        "eval '$(python src/train.py --shell-completion",  # engine/tests/config/test_explained.py
    )
    assert [c for _, c in ALL if not c.startswith(known)] == []


def test_files_that_are_named_exist() -> None:
    named = {
        name
        for page in PAGES
        for name in re.findall(
            r"`((?:engine|examples|src|slurm|configs|tests|tools|docs)/[\w./-]*)`", page.read_text()
        )
        if page.name != "comparison.md"  # of other projects too
    }
    assert named
    written = [name for page in PAGES for name in re.findall(r"Write `([\w./]+)`", page.read_text())]
    yours = [
        name
        for name in named
        if Path(name).stem == "mine" or name.startswith(("configs/local/", "configs/hosts/"))
    ] + written
    # the engine may be installed, without tests and benchmarks, and the examples deleted
    gone = tuple(f"{top}/" for top in ("engine", "examples") if not (ROOT / top).is_dir())
    named = {name for name in named if not name.startswith(gone)}
    assert [name for name in named if not (ROOT / name).exists() and name not in yours] == []


def test_messages_of_the_project_are_those_that_it_prints() -> None:
    page = (ROOT / "docs/how-to/troubleshooting.md").read_text()
    ours = page.partition("## Messages of this project")[2].partition("## Messages of other programs")[0]
    files = [
        p
        for top in (ROOT / "src", ROOT / "slurm", ENGINE / "train_anywhere")
        for kind in ("*.py", "*.j2")
        for p in top.rglob(kind)
    ]
    code = "".join(p.read_text() for p in files)
    code = re.sub(r'"\s*\n\s*f?"', "", code)  # texts of several lines
    messages = re.findall(r"^### `(.*)`$", ours, re.MULTILINE)
    assert messages and [message for message in messages if message not in code] == []


def test_pictures_begin_with_a_full_screen() -> None:
    """Animations start with a full screen, and long commands fit their box."""
    for theme in ("light", "dark"):
        frames = re.findall(r"([\d.]+)%\{transform:(\S+?)\}", (ROOT / f"docs/cast-{theme}.svg").read_text())
        assert frames[0][1] == frames[-1][1] != "translateY(0px)"
    lines = [
        line
        for block in re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
        for line in block.splitlines()
    ]
    assert max(map(len, lines)) <= 102
