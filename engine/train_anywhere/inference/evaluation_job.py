"""An evaluation as a job: which cluster, and the command that its one process runs."""

from collections.abc import Sequence
from dataclasses import replace

from train_anywhere.config.command.compose import compose
from train_anywhere.config.command.diagnose import diagnose
from train_anywhere.config.command.sentences import about_configuration
from train_anywhere.config.load import load
from train_anywhere.config.paths import absolute
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.files.typed_paths import as_typed
from train_anywhere.inference.opening import alone
from train_anywhere.inference.request import Asked

SECTIONS = ("cluster", "container")
KEYS = ("wait", "dry_run", "after")


def of_the_job(words: Sequence[str]) -> list[str]:
    """The words that say where and how a job runs; none where `cluster=` is not among them, or is this machine."""
    found = [
        w for w in words if w.partition("=")[0].partition(".")[0] in SECTIONS or w.partition("=")[0] in KEYS
    ]
    named = [w.partition("=")[2] for w in found if w.partition("=")[0] == "cluster"]
    if named and named[-1] != "local":
        return found
    if after_of(words):
        raise ConfigError(
            "after=RUN lets a job wait for a run, and this evaluation runs here; add cluster=..., or leave it out."
        )
    return []


def after_of(words: Sequence[str]) -> str | None:
    """The run that the job is to follow, as `load` reads it; None for none."""
    named = [w.partition("=")[2] for w in words if w.startswith("after=")]
    return str(as_typed(absolute(named[-1]))) if named and named[-1] != "null" else None


def job_config(asked: Asked, words: Sequence[str]) -> Config:
    """The run's configuration on one device of the cluster.

    Args:
        words: of the job.

    Raises:
        ConfigError: the cluster's configuration is wrong.
    """
    try:
        there = load(compose(["trainer.nodes=1", "trainer.devices=1", *words]))
    except Exception as error:
        if about_configuration(error):
            raise diagnose(words, error, False) from None
        raise
    return replace(
        alone(asked.config),
        cluster=replace(there.cluster, chain=1),
        container=there.container,
        init=replace(asked.config.init, run=None),  # has been taken
        after=there.after,
        launch="mpirun" if there.cluster.scheduler == "pbs" else "srun",
        wait=there.wait,
        dry_run=there.dry_run,
        resume=None,
    )


def words_of(asked: Asked) -> list[str]:
    """What `src/evaluate.py` gets in the job; files are absolute, since a job may start in another folder."""
    typed = asked.typed
    words = [str(asked.run.path), "--checkpoint", typed.checkpoint]
    named = {
        "--export": asked.export,
        "--to": asked.to,
        "--predict": asked.predictions,
        "--split": typed.split,
    }
    words += [word for name, value in named.items() if value for word in (name, str(value))]
    if typed.generate is not None:
        words += [f"--generate={typed.generate}", "--tokens", str(typed.tokens)]
        words += ["--temperature", str(typed.temperature), "--seed", str(typed.seed)]
    return words + asked.words
