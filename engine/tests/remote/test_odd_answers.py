"""A host whose answers and run folders are of any form: one message, and nothing is written outside of the run's folder here."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from train_anywhere.commands import jobs
from train_anywhere.errors import CheckpointError
from train_anywhere.remote import connection
from train_anywhere.runs.folder import FORMAT, claim_named
from train_anywhere.runs.reopen.frozen import REQUIRED_KEYS

ID = "20260102-030405-a1b2"

SSH = """#!/bin/sh
[ "$1" = -G ] && exit 0
while :; do case $1 in -o) shift 2;; -*) shift;; *) break;; esac; done
shift
exec sh -c "$*"
"""
"""An ssh that runs the command here."""

PYTHON = """#!/bin/sh
[ "$1" = -SEc ] || [ "$1" = -c ] || cat {answer}
"""
"""The Python of the host: it prints its answer, whatever is asked."""


class Host:
    """A stand-in for a host: a folder with a run, and the answer to each question."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.results = folder / "there", folder / "here" / "results"
        self.answer = folder / "answer"
        self.run = self.folder / "results" / "digits" / ID
        self.run.mkdir(parents=True)
        self.results.mkdir(parents=True)
        for name, text in (("ssh", SSH), ("python", PYTHON.format(answer=self.answer))):
            (folder / "bin").mkdir(exist_ok=True)
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        (folder / "hosts").mkdir()
        settings = {"ssh": "x", "folder": str(self.folder), "python": f"{folder}/bin/python", "setup": None}
        (folder / "hosts" / "site.yaml").write_text(yaml.safe_dump(settings))
        (self.run / "config.yaml").write_text(yaml.safe_dump({key: {} for key in REQUIRED_KEYS}))
        (self.run / "run.json").write_text(json.dumps({"format": FORMAT, "state": "completed"}))
        (self.run / "report.html").write_text("<script>theirs</script>")
        (folder / "here" / "thesis.tex").write_text("two years of work")

    def says(self, text: str | None = None, **changed: Any) -> None:
        """Set the answer: a text, or that of a run with other values."""
        run: dict[str, Any] = {"id": ID, "name": "digits", "trouble": ""} | changed
        run.setdefault("path", f"{self.folder}/results/{run['name']}/{run['id']}")
        self.answer.write_text(json.dumps({"runs": [run]}) if text is None else text)

    def pull(self, *words: str) -> int:
        """Pull the run, and return the exit code."""
        return jobs.main(["pull", "--on", "site", "--results", str(self.results), *words])


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A stand-in for a host."""
    made = Host(tmp_path)
    monkeypatch.setattr(connection, "HOSTS", tmp_path / "hosts")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    made.says()
    return made


def checksums(folder: Path, target: Path) -> dict[str, str]:
    """Return what each file and link below a folder holds, without those of the target."""
    return {
        str(path): os.readlink(path) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if (path.is_symlink() or path.is_file()) and not path.is_relative_to(target)
    }


def write(name: str, text: str) -> Callable[[Host], object]:
    def change(host: Host) -> None:
        (host.run / name).parent.mkdir(parents=True, exist_ok=True)
        (host.run / name).write_text(text)

    return change


def link(name: str, target: str, here: bool = False) -> Callable[[Host], object]:
    def change(host: Host) -> None:
        path = (host.results if here else host.run) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    return change


def answers(text: str | None = None, **names: Any) -> Callable[[Host], object]:
    return lambda host: host.says(text, **names)


def own_files(host: Host) -> None:
    (host.results / "digits" / ID).mkdir(parents=True)
    (host.results / "digits" / ID / "run.json").write_text("{}")


def other_run(host: Host) -> None:
    own_files(host)
    (host.results / "digits" / ID / ".run-marker").write_text("folder of run 20250101-000000-0000\n")


TEXTS = ["", "Welcome", "{", "[]", "{}", "null", '{"runs": 3}', '{"runs": {"a": 1}}', '{"runs": [3]}', '{"runs": [null]}',
         '{"runs": [{}]}', '{"runs": ' + "[" * 100_000, '{"runs": [NaN]}', '{"runs": [' + "9" * 5000 + "]}"]  # fmt: skip

VALUES: list[dict[str, Any]] = [{"id": 3}, {"name": None}, {"path": 3}, {"path": None}, {"path": ""}, {"path": "/"}, {"path": ["a"]},
          {"trouble": None}, {"trouble": 3}]  # fmt: skip

NAMES = [
    "..", ".", "a/b", "/etc", "", ".ssh", "latest", "Latest", "-rf", "a\nb", "é", "x" * 101, "\ud800", "a\0b", " ", "\x1b[2J",
]  # fmt: skip

REFUSED: dict[str, Callable[[Host], object]] = {
    **{f"text {number}": answers(text) for number, text in enumerate(TEXTS)},
    **{f"{value}": answers(**value) for value in VALUES},
    **{f"name {name!a}": answers(name=name) for name in NAMES},
    **{f"id {name!a}": answers(id=name) for name in NAMES},
    "of another path": answers(path=f"/there/results/digits2/{ID}"),
    "trouble there": answers(trouble="run.json is damaged"),
    "a link to a folder of mine": link("digits", "..", here=True),
    "a link to my thesis": link(f"digits/{ID}", "../..", here=True),
    "a folder of mine": own_files,
    "the folder of another run": other_run,
    "run.json is a list": write("run.json", "[]"),
    "run.json is cut": write("run.json", '{"state":'),
    "run.json of other types": write("run.json", '{"attempts": [{"started": 5}]}'),
    "run.json without format": write("run.json", '{"format": 99}'),
    "config.yaml is a list": write("config.yaml", "[]"),
    "config.yaml is cut": write("config.yaml", "a: ["),
    "config.yaml with dots": write("config.yaml", "\n".join(f"{key}: 1\n{key}.a: 2" for key in REQUIRED_KEYS)),
    "config.yaml in itself": write("config.yaml", "a: &a {b: *a}\n" + "".join(f"{key}: 1\n" for key in REQUIRED_KEYS)),
    "no config.yaml": lambda host: (host.run / "config.yaml").unlink(),
    "config.yaml is a link": lambda host: (host.run / "config.yaml").rename(host.run / "c") and link("config.yaml", "c")(host),
    "checkpoints is a file": write("checkpoints", "x"),
}  # fmt: skip

ACCEPTED: dict[str, Callable[[Host], object]] = {
    "no run.json": lambda host: (host.run / "run.json").unlink(),
    "attempts without a start": write("run.json", json.dumps({"format": FORMAT, "attempts": [{}]})),
    "a link to a file of mine": link("metrics.csv", "../../../here/thesis.tex"),
    "an absolute link": link("log.txt", "/etc/passwd"),
    "checkpoints is a link": link("checkpoints", "../../../../here"),
    "a best checkpoint elsewhere": write("checkpoints/best", "../../.."),
    "a best checkpoint in other digits": write("checkpoints/best", "\u0661"),
    "a best checkpoint of bytes": lambda host: (
        (host.run / "checkpoints").mkdir(),
        (host.run / "checkpoints" / "best").write_bytes(b"\xff"),
    ),
    "a pipe": lambda host: os.mkfifo(host.run / "log.txt"),
    "the mark of another run": write(".run-marker", "folder of run 1\n"),
    "metrics of nothing": write("metrics.csv", "\0,,\n\x1b[2J"),
    "compiled code": write("code/__pycache__/a.cpython-311.pyc", "x"),
}


@pytest.mark.quick("text 1", "id 'a/b'", "a link to my thesis", "a folder of mine", "config.yaml in itself")
@pytest.mark.parametrize("case", REFUSED)
def test_an_odd_answer_is_one_message_and_writes_nowhere_else(host, case, tmp_path, capsys):
    REFUSED[case](host)
    target = host.results / "digits" / ID
    if os.path.lexists(target):  # not the run's own: it must stay as well
        target = tmp_path / "none"
    before = checksums(tmp_path, target)
    assert host.pull("--all") == 2
    shown = capsys.readouterr()
    assert shown.err.count("error: ") == 1 and "Traceback" not in shown.err and "\x1b" not in shown.err
    assert checksums(tmp_path, target) == before


@pytest.mark.quick("checkpoints is a link", "a pipe")
@pytest.mark.parametrize("case", ACCEPTED)
def test_an_odd_run_folder_stays_in_its_folder(host: Host, case: str, tmp_path: Path) -> None:
    ACCEPTED[case](host)
    target = host.results / "digits" / ID
    before = checksums(tmp_path, target)
    assert host.pull("--all") in (0, 2)
    assert checksums(tmp_path, target) == before
    assert not any(path.is_symlink() for path in target.rglob("*")) and not [*target.rglob("*.pyc")]
    assert (target / ".run-marker").read_text() == f"folder of run {ID}\n"
    assert host.pull("--all") in (0, 2)  # typed again, it continues
    assert "theirs" not in (target / "report.html").read_text() if (target / "report.html").exists() else True


def test_what_is_no_file_is_named_and_the_report_is_written_here(host, capsys):
    for number in range(7):
        link(f"x{number}", "/etc/passwd")(host)
    assert host.pull() == 0
    assert (
        "note: not copied, since they are no files: x0, x1, x2, x3, x4 and 2 more\n"
        in capsys.readouterr().err
    )
    page = (host.results / "digits" / ID / "report.html").read_text()
    assert "theirs" not in page and ID in page


def test_code_here_is_not_replaced_if_its_job_was_submitted_here(host: Host) -> None:
    (host.run / "code").mkdir()
    (host.run / "code" / "a.py").write_text("theirs")
    assert host.pull("--all") == 0
    own = host.results / "digits" / ID
    assert (own / "code" / "a.py").read_text() == "theirs"
    (own / "code" / "a.py").write_text("mine")
    (own / "job.sbatch").write_text("")
    (own / "jobs.txt").write_text("")
    host.pull("--all")
    assert (own / "code" / "a.py").read_text() == "mine"


def test_a_name_from_elsewhere_makes_no_other_folder(tmp_path: Path) -> None:
    for name in NAMES:
        with pytest.raises(CheckpointError):
            claim_named(tmp_path, name, "1")
    assert not [*tmp_path.iterdir()]
    assert claim_named(tmp_path, "digits", "1").path == tmp_path / "digits" / "1"
