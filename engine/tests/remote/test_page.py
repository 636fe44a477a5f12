"""Every command of the page "From your laptop" works, with its host file and with what it says of transfers."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from engine.tests.remote.conftest import Laptop, Site
from train_anywhere.files import ROOT
from train_anywhere.remote.connection import Host

PAGE = (ROOT / "docs" / "how-to" / "from-your-laptop.md").read_text()
SUBMITS = ("train", "run", "scaling", "evaluate")

pytestmark = [pytest.mark.git, pytest.mark.new_process]


def page_commands() -> list[list[str]]:
    """Return the words of each command in the bash blocks of the pages about another machine."""
    text = PAGE + (ROOT / "README.md").read_text()
    lines = [line for block in re.findall(r"```bash\n(.*?)```", text, re.S) for line in block.splitlines()]
    return [shlex.split(line) for line in lines if re.search(r" on=| --on ", line)]


def test_the_table_has_the_defaults() -> None:
    host = Host("x", "y")
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \|", PAGE, re.M)
    shown = dict(rows)
    assert {name: "null" if (v := getattr(host, name)) is None else str(v) for name in shown} == shown
    assert {*Host.__dataclass_fields__} - {*shown} == {"ssh", "folder", "name"}


@pytest.mark.slow
def test_the_commands_of_the_page_work(laptop: Laptop, site: Site) -> None:
    written = re.search(r"```yaml\n(.*?)```", PAGE, re.S)
    assert written
    text = (
        written[1].replace("~/my-project ", f'"{site.folder}" ').replace("ssh: mycluster", "ssh: site-login")
    )
    for name in ("mycluster", "othercluster"):
        folder = text.replace(str(site.folder), str(site.home / name))
        more = f"python: {sys.executable}\nsetup: null\n"
        (laptop.project / "configs" / "hosts" / f"{name}.yaml").write_text(folder + more)
    (laptop.project / "configs" / "hosts" / "site.yaml").unlink()
    for name in ("mycluster", "othercluster"):
        quick = ("cluster=local", "trainer.max_epochs=1", "model=mlp")
        assert laptop.command("train", f"on={name}", *quick).returncode == 0
    commands = page_commands()
    assert len(commands) > 10
    for _, script, *words in commands:
        program = Path(script).stem
        if script == "-m":  # python -m train_anywhere VERB
            program, *words = words[1:]
        at = words.index("--") if "--" in words else len(words)
        dry = ["dry_run=true"] if program in SUBMITS else []
        done = laptop.command(program, *words[:at], *dry, *words[at:])
        finished = "ran on this machine" in done.stderr  # a run without a job has no log to follow
        assert done.returncode == 0 or finished, f"{script} {words}: {done.stdout}{done.stderr}"


def test_the_settings_of_ssh_on_the_page_are_valid(tmp_path: Path) -> None:
    shown = re.search(r"```text\n(Host .*?)```", PAGE, re.S)
    assert shown
    (tmp_path / "config").write_text(shown[1])
    asked = ["ssh", "-F", tmp_path / "config", "-G", "mycluster"]
    known = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert "controlpersist 28800" in known and "controlmaster auto" in known
