"""Programs of any kind on this machine keep the user's environment and folder."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.tests.program.conftest import RUN, SHOW, Latest, Run
from tools.testing.processes import run_python
from train_anywhere.files import ENGINE, ROOT
from train_anywhere.runs.folder import RunDir

ADDED = {"PATH", "PYTHONPATH", "SHOW_IN"}


@pytest.fixture
def run(run: Run, tmp_path: Path) -> Run:
    return partial(run, cwd=tmp_path)


def shown(tmp_path: Path, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "results" / "latest" / f"shown-{rank}.json").read_text())
    return found


def ok(done: "subprocess.CompletedProcess[str]") -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("prefix", [(), ("nohup",)])
def test_the_environment_is_that_of_a_plain_start(tmp_path: Path, prefix: tuple[str, ...]) -> None:
    """New interpreters, since a fork of a warm process has other signals."""
    environ = {**os.environ, "KERAS_BACKEND": "jax", "MINE": "1", "SHOW_IN": str(tmp_path)}
    environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
    code = "import os, sys; os.umask(0o27); os.execvp(sys.argv[1], sys.argv[1:])"
    plain = [*prefix, sys.executable, "-c", code, sys.executable, str(SHOW)]
    run = (str(ROOT / "src" / "run.py"), f"paths.results={tmp_path / 'results'}")
    ours = [*plain[:-1], *run, "--", str(SHOW)]
    facts = []
    for command in (plain, ours):
        subprocess.run(["env", *command], env=environ, check=True, cwd=tmp_path, stdin=subprocess.DEVNULL)
        facts.append(json.loads((tmp_path / "shown-0.json").read_text()))
    before, after = facts
    without = [{k: v for k, v in f["environ"].items() if k not in ADDED} for f in facts]
    assert {k: v for k, v in without[1].items() if not k.startswith("TRAIN_")} == without[0]
    for key in ("signals", "umask", "folder"):
        assert before[key] == after[key], key
    assert after["environ"]["PATH"].split(":")[0] == str(Path(sys.executable).parent)


def test_a_lightning_run_keeps_the_backend(run: Run) -> None:
    """Only framework=keras chooses TensorFlow."""
    code = "import os, train_anywhere; print(os.environ.get('KERAS_BACKEND'), end=' ')\n"
    code += "from train_anywhere.config.command.compose import compose; from train_anywhere.config.load import load\n"
    code += "load(compose(['framework={}'])); print(os.environ.get('KERAS_BACKEND'))"
    environ = {**os.environ, "PYTHONPATH": str(ENGINE), "KERAS_BACKEND": "jax"}
    for framework, printed in (("lightning", "jax jax\n"), ("keras", "jax tensorflow\n")):
        command = [sys.executable, "-c", code.format(framework)]
        assert subprocess.check_output(command, env=environ, text=True, cwd=ROOT) == printed


def test_a_module_in_its_folder(run: Run, tmp_path: Path, latest: Latest) -> None:
    """`python -m pkg.train` of a folder outside the project, and a script that imports from it."""
    package = tmp_path / "nano" / "pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "train.py").write_text(SHOW.read_text())
    scripts = tmp_path / "nano" / "scripts"
    scripts.mkdir()
    (scripts / "go.py").write_text("import pkg.train\n")
    ok(run("program.folder=nano", "--", "-m", "pkg.train", "a b"))
    first = shown(tmp_path)
    assert first["folder"] == str(tmp_path / "nano") and first["arguments"] == ["a b"]
    ok(run("program.folder=nano", "--", "scripts/go.py", "c"))
    second = shown(tmp_path)
    assert second["folder"] == str(tmp_path / "nano") and second["arguments"] == ["c"]
    assert second["environ"]["PYTHONPATH"].split(":")[0] == str(tmp_path / "nano")
    # resumed from another folder, the same program
    folder = latest()
    RunDir(folder).update(state="failed")
    (folder / "shown-0.json").unlink()
    ok(run(f"resume={folder}", cwd=ROOT))
    assert shown(tmp_path)["arguments"] == ["c"]


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder of commands: each prints its name and arguments, and shows what it got."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("accelerate", "deepspeed", "anomalib"):
        (folder / name).write_text(f'#!/bin/bash\necho {name}: "$@"\nexec python {SHOW} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def test_commands_of_the_environment(run: Run, tmp_path: Path, latest: Latest, tools: Path) -> None:
    """Python in a shell script is that of the run, although the environment is not activated."""
    environ = {**os.environ, "PATH": f"{tools}:/usr/bin:/bin"}
    printed = ok(run("--", "anomalib", "fit", "--a=$HOME", env=environ))
    assert "anomalib: fit --a=$HOME" in printed
    found = shown(tmp_path)
    assert os.path.realpath(found["python"]) == os.path.realpath(sys.executable)
    assert latest().parent.name == "anomalib"
    assert found["environ"]["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert "anomalib: x" in ok(run("--", str(tools / "anomalib"), "x", env=environ))
    assert "bash" in ok(run("--", "bash", "-c", "echo bash"))


@pytest.mark.parametrize(
    "words, command, processes",
    [
        (["trainer.devices=1"], "mine.py", "1 (program.processes=one)"),
        (["trainer.devices=4"], "mine.py", "4 (program.processes=rank)"),
        (["trainer.devices=1", "launch=torchrun"], "mine.py", "1 (program.processes=rank)"),
        (["trainer.devices=4", "program.processes=node"], "mine.py", "1 (program.processes=node)"),
        (["trainer.devices=4"], "accelerate launch mine.py", "1 (program.processes=node)"),
        (["trainer.devices=4"], "deepspeed mine.py", "1 (program.processes=node)"),
        (["trainer.devices=4"], "-m torch.distributed.run mine.py", "1 (program.processes=node)"),
        (["trainer.devices=4"], "python -m accelerate.commands.launch mine.py", "1 (program.processes=node)"),
        (["trainer.devices=4", "program.processes=rank"], "deepspeed mine.py", "4 (program.processes=rank)"),
    ],
)
def test_the_dry_run_prints_the_processes(run, tmp_path, tools, words, command, processes):
    (tmp_path / "mine.py").touch()
    environ = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    local = ok(run("trainer.accelerator=cpu", *words, "dry_run=true", "--", *command.split(), env=environ))
    assert f"Processes:     {processes}" in local
    job = ok(run("cluster=slurm", *words, "dry_run=true", "--", *command.split(), env=environ))
    assert f"\nranks       {processes}\n" in job
    assert f"#SBATCH --gpus-per-node={words[0][-1]}\n" in job and f"#SBATCH --ntasks={processes[0]}\n" in job


def test_torchrun_starts_a_process_for_each_device(run: Run, tmp_path: Path) -> None:
    ok(run("trainer.devices=2", "trainer.accelerator=cpu", "--", "torchrun", str(SHOW)))
    assert [shown(tmp_path, rank)["environ"]["LOCAL_WORLD_SIZE"] for rank in (0, 1)] == ["2", "2"]


def test_arguments_name_folders_of_the_run(run: Run, tmp_path: Path, latest: Latest) -> None:
    """Only the variables of the run are replaced: no shell reads the arguments."""
    words = ["--out=$TRAIN_PERSISTENT_CHECKPOINTS", "${TRAIN_RUN}/x", "$TRAIN_RUNS", "$HOME", "{x}"]
    ok(run("--", str(SHOW), *words))
    folder = latest()
    assert shown(tmp_path)["arguments"] == [f"--out={folder}/checkpoints", f"{folder}/x", *words[2:]]


def test_arguments_of_a_later_start(run: Run, tmp_path: Path, latest: Latest) -> None:
    """They are added from the second start on, if there is a checkpoint."""
    (tmp_path / "mine.py").write_text(
        "import os, sys; from pathlib import Path; print(sys.argv[1:], flush=True)\n"
        "folder = Path(os.environ['TRAIN_LOCAL_CHECKPOINTS'])\n"
        "if '--saves' in sys.argv: (folder / 'a.pt').touch()\nsys.exit(7)\n"
    )
    keys = ("trainer.accelerator=cpu", "program.resume_args=--init_from=resume --ckpt '$TRAIN_RUN/a b'")
    first = run(*keys, "--", "mine.py", "--saves").stdout
    folder = latest()
    assert first.count("['--saves']") == 1
    again = run(f"resume={folder}").stdout
    assert again.count(f"['--saves', '--init_from=resume', '--ckpt', '{folder}/a b']") == 1
    run(*keys, "--", "mine.py")
    other = latest()
    assert other != folder
    assert run(f"resume={other}").stdout.count("[]") == 1


def test_a_terminal_is_kept(tmp_path: Path) -> None:
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        command = [
            sys.executable, str(ROOT / "src/run.py"), f"paths.results={tmp_path / 'results'}", "--", str(SHOW),
        ]  # fmt: skip
        os.execv(sys.executable, command)
    try:
        while os.read(terminal, 2**16):
            pass
    except OSError:  # closed
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    assert shown(tmp_path)["tty"]


def test_what_a_program_printed_is_in_its_log(tmp_path: Path) -> None:
    (tmp_path / "both.sh").write_text(
        "echo one\necho two >&2\nprintf 'at 10%%\\rat 20%%\\n'\nprintf three\nexit 3\n"
    )
    results = f"paths.results={tmp_path / 'results'}"
    command = [*RUN, results, "--", "bash", "both.sh"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 3 and "one\n" in done.stdout and "two\n" in done.stderr
    jobs = [sys.executable, str(ROOT / "src/jobs.py"), "logs", "--results", str(tmp_path / "results")]
    shown = subprocess.run(jobs, capture_output=True, text=True)
    assert shown.returncode == 0 and {"one", "two", "at 20%"} <= {*shown.stdout.splitlines()}, shown
    assert "three" in shown.stdout and "ended with exit code 3" in shown.stdout
    status = subprocess.run([*jobs[:2], "status", *jobs[3:]], capture_output=True, text=True).stdout
    assert "src/jobs.py logs" in status and "src/run.py resume=" in status


def test_a_training_has_no_keys_of_a_program() -> None:
    done = run_python(str(ROOT / "src/train.py"), "program.folder=x", "args.lr=1", "dry_run=true")
    assert done.returncode == 2 and "program.folder, args.lr: keys of src/run.py" in done.stderr
