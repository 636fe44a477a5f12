"""Code of a run folder does not run before the user trusts it."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.tests.runs.test_reach import Make, Train, handed_over, resume
from train_anywhere.commands import jobs
from train_anywhere.errors import ConfigError, SubmitError
from train_anywhere.runs.reopen.resume import load_saved_overrides
from train_anywhere.runs.reopen.trust import refuse_foreign_script, remember_script

SETUP = 'cluster.setup=["touch /tmp/x"]'


def test_one_s_own_run_is_not_asked_for(make_run: Make) -> None:
    _, run = make_run("cluster=slurm", SETUP, "container=apptainer", "container.image=a.sif")
    assert resume(run, "seed=1")["cluster"]["setup"] == ["touch /tmp/x"]  # type: ignore[index]


def test_a_foreign_run_is_shown_and_refused(make_run: Make) -> None:
    run = handed_over(make_run("cluster=slurm", SETUP, "container=apptainer", "container.image=a.sif")[1])
    with pytest.raises(ConfigError) as refused:
        resume(run)
    assert sorted(refused.value.problems) == sorted(
        f"the run folder {run.path} brings {value}, which would run as you and is not in this project's configuration: "
        "read it, and add trust=true to run it."
        for value in ("container.image='a.sif'", "cluster.setup=['touch /tmp/x']")
    )
    with pytest.raises(ConfigError, match=r"container\.image"):
        resume(run, SETUP)  # typed by oneself
    assert resume(run, "trust=true")["trust"] is True


def test_a_foreign_run_of_the_project_s_own_presets_is_not_asked_for(make_run: Make) -> None:
    run = handed_over(make_run("cluster=technion", "cluster.modules=[]")[1])
    resume(run)
    resume(run, "cluster=slurm", SETUP)


def test_code_for_another_cluster_is_refused_if_it_would_run(make_run: Make) -> None:
    run = handed_over(make_run(SETUP)[1])
    resume(run)
    with pytest.raises(ConfigError, match="touch /tmp/x"):
        resume(run, "cluster=slurm")


@pytest.mark.parametrize(
    ("lines", "typed"),
    [
        (["trust=true"], []),
        (["++trust=true"], []),
        (['cluster.setup=["${trainer.max_epochs}; touch /tmp/x"]'], ["trainer.max_epochs=9"]),
    ],
)
@pytest.mark.quick("lines2-typed2")
def test_a_foreign_run_does_not_speak_for_the_user(
    make_run: Make, lines: Sequence[str], typed: Sequence[str]
) -> None:
    run = handed_over(make_run("cluster=slurm", SETUP)[1])
    run.overrides.write_text("cluster=slurm\n" + "\n".join(lines))
    with pytest.raises(ConfigError, match=r"add trust=true"):
        resume(run, *typed)


@pytest.mark.parametrize(
    "line",
    [
        "hydra.run.dir=/tmp/x", "+hydra.searchpath=[/tmp/x]", "hydra/launcher=slurm", "--config-dir=/tmp/x", "-m",
    ],
)  # fmt: skip
def test_flags_and_hydra_s_keys_of_a_run_are_not_used(
    make_run: Make, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, run = make_run("model=mlp")
    run.overrides.write_text(f"model=mlp\n{line}\n")
    assert load_saved_overrides([f"resume={run.path}"]) == ["model=mlp"]
    told = f"{run.overrides}: {line!r} belongs to one command and is not used again.\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    "line", ["cluster=../../../tmp/x", "experiment@hydra=debug", "seed=1,2", "cluster=nowhere"]
)
def test_a_choice_that_is_not_of_this_project_is_refused(make_run: Make, line: str) -> None:
    _, run = make_run()
    run.overrides.write_text(f"{line}\n")
    with pytest.raises(ConfigError) as refused:
        load_saved_overrides([f"resume={run.path}"])
    assert refused.value.problems == [
        f"{run.overrides}: {line!r} is not a choice of this project, so it is not used."
    ]


def test_a_sweep_of_a_resumed_run_is_refused(make_run: Make) -> None:
    _, run = make_run()
    with pytest.raises(ConfigError, match="'seed=1,2' asks for several runs, but resume= continues one"):
        load_saved_overrides(["-m", f"resume={run.path}", "seed=1,2"])


def test_a_record_that_others_can_write_is_not_believed(make_run: Make, tmp_path: Path) -> None:
    os.environ["XDG_STATE_HOME"] = str(tmp_path / "state")
    _, run = make_run("cluster=slurm", SETUP)
    record = tmp_path / "state" / "train-anywhere" / "trusted"
    assert record.stat().st_mode & 0o777 == 0o600
    resume(run)
    record.chmod(0o666)
    with pytest.raises(ConfigError, match="add trust=true"):
        resume(run)


def test_only_one_s_own_script_is_submitted_again(tmp_path: Path) -> None:
    script = tmp_path / "job.sbatch"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(SubmitError, match="is not a script that you have submitted from there"):
        refuse_foreign_script(script, trust=False)
    refuse_foreign_script(script, trust=True)
    remember_script(script)
    refuse_foreign_script(script, trust=False)
    script.write_text("#!/bin/sh\ntouch /tmp/x\n")
    with pytest.raises(SubmitError, match="add --trust"):
        refuse_foreign_script(script, trust=False)


def test_the_command_refuses_before_it_asks_the_scheduler(
    make_run: Make, train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = handed_over(make_run("cluster=slurm", SETUP)[1])
    before = sorted(run.path.rglob("*"))
    (tmp_path / "bin").mkdir()
    for name in ("sbatch", "squeue", "scontrol", "sinfo", "sacct"):
        (tmp_path / "bin" / name).write_text(
            f"#!/bin/sh\necho {name} >>{tmp_path}/asked; [ {name} = squeue ] || echo 9\n"
        )
        (tmp_path / "bin" / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    refused = train(f"resume={run.path}", env=env)
    assert refused.returncode == 2
    assert "brings cluster.setup=['touch /tmp/x'], which would run as you" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert sorted(run.path.rglob("*")) == before
    assert not (tmp_path / "asked").exists()
    trusted = train(f"resume={run.path}", "trust=true", env=env)
    assert trusted.returncode == 0, trusted.stderr
    assert "touch /tmp/x" in (run.path / "job.sbatch").read_text()
    assert "trust" not in run.overrides.read_text()
    assert "sbatch" in (tmp_path / "asked").read_text()
    (run.path / "job.sbatch").write_text("touch /tmp/y\n")
    os.environ["PATH"] = env["PATH"]
    assert jobs.main(["resubmit", str(run.path)]) == 2
    assert "--trust" in capsys.readouterr().err


def test_an_argument_of_the_trainer_that_may_reach_outside_is_refused(make_run: Make) -> None:
    run = handed_over(make_run("+trainer.extra.profiler=simple")[1])
    with pytest.raises(ConfigError) as refused:
        resume(run)
    assert len(refused.value.problems) == 1 and "trainer.extra.profiler='simple'" in str(refused.value)
    resume(run, "trust=true")
