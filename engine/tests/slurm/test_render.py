"""The script of a job: lines of its header, numbers of nodes, outlines that a project has edited."""

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.tests.slurm.scripts import Scripts
from train_anywhere.errors import ConfigError
from train_anywhere.files import ENGINE, ROOT
from train_anywhere.slurm.script import render as renderer
from train_anywhere.slurm.script.job import make_job
from train_anywhere.slurm.script.render import log_path, option, render


def test_a_line_break_in_a_line_of_options_is_refused(scripts: Scripts) -> None:
    with pytest.raises(ConfigError, match="line break"):
        scripts.render(account="a\ntouch HACKED")


def test_options_are_quoted_only_where_the_scheduler_would_cut_them() -> None:
    assert option("a100:8") == "a100:8"
    assert option("nvcr.io#nvidia/pytorch") == '"nvcr.io#nvidia/pytorch"'
    assert option('say "hi" \\') == '"say \\"hi\\" \\\\"'


def test_the_log_is_in_the_run_folder_of_each_member(scripts: Scripts) -> None:
    made = scripts.make(run="/r/50%/x")
    assert log_path(made) == "/r/50%%/x/slurm-%j"
    assert log_path(dataclasses.replace(made, members=(0, 1))) == "/r/50%%/x-%a/slurm-%A_%a"


def test_an_elastic_job_without_retries_may_go_on_with_fewer_nodes(scripts: Scripts) -> None:
    script = scripts.render("trainer.nodes=2-4", "cluster.retries=0")
    assert " --fewest=2 --no-kill --retries=0 " in script
    assert "--retries" not in scripts.render("trainer.nodes=2", "cluster.retries=0")


@pytest.mark.parametrize(
    ("nodes", "batch", "counts", "asked"),
    [
        ("8-16", 1024, (8, 16), "--nodes=8-16"),
        ("500-1000", 6400, (800,), "--nodes=800"),
        ("9-16", 1024, (16,), "--nodes=16"),
        ("2-4", 96, (2, 3, 4), "--nodes=2-4"),
    ],
)
def test_an_elastic_job_uses_numbers_of_nodes_that_share_the_batch(
    scripts: Scripts, nodes: str, batch: int, counts: tuple[int, ...], asked: str
) -> None:
    made = scripts.make(f"trainer.nodes={nodes}", "trainer.devices=8", f"data.batch_size={batch}")
    script = render(made)
    assert made.counts == counts and f"#SBATCH {asked}\n" in script
    assert ("--counts=8,16" in script) == (counts == (8, 16)) and script.count("--counts") == (
        len(counts) == 2
    )
    program = scripts.make(
        f"trainer.nodes={nodes}", f"data.batch_size={batch}", "program.command=[a]", "trainer.devices=8"
    )
    assert len(program.counts) == int(nodes.partition("-")[2]) - int(nodes.partition("-")[0]) + 1


@pytest.mark.parametrize(("cluster", "may_requeue"), [("slurm", True), ("pbs", False)])
def test_only_slurm_requeues_a_job_without_a_bad_node(
    scripts: Scripts, cluster: str, may_requeue: bool
) -> None:
    made = make_job(scripts.make_config(f"cluster={cluster}", "cluster.retries=1"), "/run", "/run/code")
    assert ("/python --requeue" in render(made)) == may_requeue


def test_the_layout_on_sockets_is_kept(scripts: Scripts) -> None:
    for extra, expected in (
        ("--distribution=cyclic", "block"),
        ("--distribution=block:block", "block:block"),
        ("-m cyclic:fcyclic", "block:fcyclic"),
        ("--mem-bind=local", "block"),
    ):
        assert f" --distribution={expected} " in scripts.render(extra=[extra])


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's outline, to be edited."""
    folder = tmp_path / "templates"
    shutil.copytree(renderer.TEMPLATES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(renderer, "TEMPLATES", folder)
    return folder


def test_the_example_of_the_page(scripts: Scripts, templates: Path) -> None:
    """docs/how-to/batch-script.md: a line for all jobs, and a wrapper of the ranks' command."""
    page = (ROOT / "docs/how-to/batch-script.md").read_text()
    ((include, line),) = re.findall(r"title=\"slurm/templates/slurm.sh.j2\"\n(.*\n)(.*\n)```", page)
    (commands,) = re.findall(r"```bash\n(cp .*\nsed -i .*)\n```", page)
    outline = (templates / "slurm.sh.j2").read_text()
    (templates / "slurm.sh.j2").write_text(outline.replace(include, include + line))
    (templates.parent / "slurm").mkdir()
    (templates.parent / "slurm" / "templates").symlink_to(templates)
    (templates.parent / "engine").symlink_to(ENGINE)
    subprocess.run(commands, shell=True, check=True, cwd=templates.parent)
    script = scripts.render()
    assert line in script and re.search(r"-- \\\n +nice srun ", script)
    assert f"`{'`, `'.join(renderer.INCLUDES)}`" in page


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("{# outline 3", "{# outline 2", "is an outline version 2, but this engine needs version 3"),
        ("{# outline 3", "{#", "is an outline without a version"),
        ('{% include "ranks.sh.j2" %}', "", 'lacks {% include "ranks.sh.j2" %}'),
        ('"ranks.sh.j2"', '"ranks.sh.j2" %}{% include "site.sh.j2"', "site.sh.j2 is included by"),
        ("set -euo pipefail", "{% if %}", "slurm.sh.j2: Expected an expression"),
        ("set -euo pipefail", "{{ job.partition }}", "has no attribute 'partition'"),
    ],
)
def test_an_outline_that_does_not_fit(
    scripts: Scripts, templates: Path, old: str, new: str, says: str
) -> None:
    outline = templates / "slurm.sh.j2"
    assert old in outline.read_text()
    outline.write_text(outline.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=re.escape(says)):
        scripts.render()


def test_an_outline_that_is_missing_is_the_one_of_the_engine(scripts: Scripts, templates: Path) -> None:
    expected = scripts.render()
    (templates / "slurm.sh.j2").unlink()
    assert scripts.render() == expected
    (templates / "slurm.sh.j2").mkdir()
    with pytest.raises(ConfigError, match="can't be read"):
        scripts.render()
