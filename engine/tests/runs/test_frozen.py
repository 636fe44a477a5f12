"""A damaged run folder is refused with all its faults, and links where a run writes; it stays unchanged."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from train_anywhere.config.schema import Config
from train_anywhere.errors import CheckpointError
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import (
    find_special_files,
    read_frozen,
    read_overrides,
    refuse_damaged,
    refuse_links,
    write_frozen,
)
from train_anywhere.runs.reopen.resume import load_saved_overrides

MakeRun = Callable[..., tuple[Config, RunDir]]


@pytest.fixture
def run(make_run: MakeRun) -> RunDir:
    run = make_run("model=mlp")[1]
    run.update(state="completed", hosts=["n1"], parts=[{"started": "now"}])
    return run


def contents(run: RunDir) -> dict[str, bytes | None]:
    return {p.name: p.read_bytes() if p.is_file() else None for p in run.path.iterdir()}


def refusal(run: RunDir) -> str:
    """Return the refusal of `resume=`, which must leave everything unchanged."""
    before = contents(run)
    with pytest.raises(CheckpointError) as caught:
        load_saved_overrides([f"resume={run.path}", "trainer.max_epochs=9"])
    assert contents(run) == before
    return str(caught.value)


def test_a_good_one_is_read(run: RunDir) -> None:
    assert load_saved_overrides([f"resume={run.path}"])[0] == "model=mlp"
    assert read_frozen(run)["name"] == "digits"


def test_a_value_of_several_lines_stays_one_override(run: RunDir, make_run: MakeRun) -> None:
    config, again = make_run("model=mlp")
    note = 'note="a \\"b\\"\noptimizer.lr=5\r\n  c"'
    write_frozen(again, config, ["model=mlp", note, "seed=2"])
    assert read_overrides(again) == ["model=mlp", note.replace("\r", ""), "seed=2"]
    again.overrides.write_bytes(b"model=mlp\r\nseed=2\r\n")
    assert read_overrides(again) == ["model=mlp", "seed=2"]


BOMB = b"a: &a [1, 2]\n" + b"".join(b"%c: &%c [%s]\n" % (n, n, b"*%c, " % (n - 1) * 99) for n in b"bcde")
"""Aliases of aliases, which stand for 200 million values."""

DAMAGED = [
    ("config.yaml", b"a: [1\nb: 2", "is damaged (no YAML in line 2); restore"),
    ("config.yaml", b"\tname: x", "is damaged (no YAML in line 1); restore"),
    ("config.yaml", b"\xff\xfe\x00", "is damaged (no"),
    ("config.yaml", b"", "is damaged (no configuration)"),
    ("config.yaml", b"- 1\n- 2\n", "is damaged (no configuration)"),
    ("config.yaml", b"[" * 100_000, "is damaged (no YAML"),
    ("config.yaml", b"name: a\nseed: 1\n", "is damaged (it lacks framework, data, model"),
    ("config.yaml", BOMB, "is damaged (no YAML"),
    ("overrides.txt", b"model=mlp\n\xff\xff\n", "is damaged (not UTF-8)"),
    ("run.json", b"{", "is damaged (no JSON); rename it to continue without the history that it holds."),
    ("run.json", b"\xff", "is damaged (not UTF-8); rename it"),
    ("run.json", b"[1, 2]", "is not what this project writes there; rename it"),
    ("run.json", b'{"format": 2, "attempts": 5}', "is not what this project writes there; rename it"),
    ("run.json", b'{"format": 2, "attempts": [{"step": "x"}]}', "is not what this project writes there; rename it"),
    ("run.json", b"[" * 100_000, "is damaged (no JSON)"),
]  # fmt: skip


def test_a_damaged_file_is_named(run: RunDir) -> None:
    for name, content, said in DAMAGED:
        before = (run.path / name).read_bytes()
        (run.path / name).write_bytes(content)
        message = refusal(run)
        assert message.startswith(f"{run.path / name} ") and said in message
        (run.path / name).write_bytes(before)


def test_all_that_is_wrong_is_said_at_once(run: RunDir, tmp_path: Path) -> None:
    run.overrides.unlink()
    run.info_file.write_text("{")
    run.checkpoints.symlink_to(tmp_path)
    message = refusal(run)
    assert "overrides.txt can't be read (No such file or directory)" in message
    assert "run.json is damaged" in message and f"{run.checkpoints} is a link to {tmp_path}" in message


def test_a_folder_that_can_not_be_written_is_refused(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, how: False)  # as root every folder can be
    with pytest.raises(CheckpointError, match="can't be written"):
        refuse_damaged(run)


WRITTEN = [
    "steps", "jobs.txt", "bad_nodes", "report.html", "slurm-12.out", "slurm-12_3.err", "pbs-9.out", "job.sbatch",
    "monitor", "monitor/n7.csv", "monitor/hang", "debug/local-1-rank-0.txt", "ranks", "ranks/0.json",
    "tensorboard/events.out.tfevents.1.n1.2", "checkpoints/best", "wandb", "wandb/debug-cli.root.log2",
    "mlruns/0/ab/metrics/loss", "evaluations",
]  # fmt: skip


def planted(run: RunDir, name: str, target: Path) -> str:
    """Return the refusal of a run in which `name` is a link to `target`, or ""."""
    path = run.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = path.rename(run.path / "kept") if path.exists() else None
    path.symlink_to(target)
    try:
        refuse_links(run)
    except CheckpointError as refused:
        return str(refused)
    finally:
        path.unlink()
        if kept:
            kept.rename(path)
    return ""


@pytest.mark.parametrize("target", ["thesis.tex", "folder", "nothing"])
def test_a_link_is_refused(target: str, run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "thesis.tex").touch()
    refusals = {name: planted(run, name, tmp_path / target) for name in WRITTEN}
    says = f" is a link to {tmp_path / target}: a run continues in its own folder, so put what it leads to there."
    assert refusals == {name: f"{run.path / name}{says}" for name in WRITTEN}


def test_a_link_that_nothing_writes_to_stays(run: RunDir, tmp_path: Path) -> None:
    names = [
        *("notes.md", "code", "checkpoints/00000230-mine", "checkpoints/00000230", "tensorboard/baseline", "wandb/latest-run"),
        *("wandb/debug-internal.log", "wandb/offline-run-1/files/mine.txt", "evaluations/job-1/code/data"),
    ]  # fmt: skip
    assert {name: planted(run, name, tmp_path) for name in names} == dict.fromkeys(names, "")


def test_a_pipe_is_refused(run: RunDir) -> None:
    for name in ("steps", "monitor", "monitor/n1.csv", "checkpoints/newest"):
        (run.path / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(run.path / name)
        [problem] = find_special_files(run)
        assert problem.startswith(f"{run.path / name} is ") and problem.endswith("; move it away.")
        (run.path / name).unlink()


def test_a_folder_in_the_place_of_a_file_and_a_file_in_that_of_a_folder(run: RunDir) -> None:
    (run.path / "steps").mkdir()
    (run.path / "metrics.csv").mkdir()  # which is kept under another name
    run.checkpoints.write_text("")
    assert find_special_files(run) == [
        f"{run.checkpoints} is not a folder; move it away.",
        f"{run.path / 'steps'} is a folder, not an ordinary file; move it away.",
    ]
