"""An evaluation as a job: its configuration, and the command of its one process."""

from collections.abc import Sequence
from dataclasses import replace

from train_anywhere.config.command.compose import compose, quote_value
from train_anywhere.config.command.diagnose import diagnose
from train_anywhere.config.command.sentences import is_configuration_error
from train_anywhere.config.load import load
from train_anywhere.config.paths import make_absolute
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.files.typed_paths import resolve_as_typed
from train_anywhere.inference.request import EvaluationRequest
from train_anywhere.inference.trained_model import use_one_device

SECTIONS = ("cluster", "container")
KEYS = ("wait", "dry_run", "after")


def select_job_words(words: Sequence[str]) -> list[str]:
    """Return the overrides of the job's resources; [] without `cluster=`, or if it is this machine."""
    found = [w for w in words if _key(w).partition(".")[0] in SECTIONS or _key(w) in KEYS]
    clusters = [w.partition("=")[2] for w in found if _key(w) == "cluster"]
    if clusters and clusters[-1] != "local":
        return found
    if read_after(words):
        raise ConfigError(
            "after=RUN lets a job wait for a run, and this evaluation runs here; add cluster=..., or leave it out."
        )
    return []


def _key(word: str) -> str:
    return word.partition("=")[0]


def read_after(words: Sequence[str]) -> str | None:
    """Return the run that the job waits for, as `load` reads it, or None."""
    runs = [w.partition("=")[2] for w in words if w.startswith("after=")]
    return str(resolve_as_typed(make_absolute(runs[-1]))) if runs and runs[-1] != "null" else None


def make_job_config(request: EvaluationRequest, words: Sequence[str]) -> Config:
    """Return the run's configuration on one device of the cluster; `words` are the overrides of the job.

    Raises:
        ConfigError: the cluster's configuration is wrong.
    """
    words = ["trainer.nodes=1", "trainer.devices=1", *map(quote_value, words)]
    try:
        job = load(compose(words))
    except Exception as error:
        if is_configuration_error(error):
            raise diagnose(words, error, False) from None
        raise
    return replace(
        use_one_device(request.config),
        cluster=replace(job.cluster, chain=1),
        container=job.container,
        init=replace(request.config.init, run=None),  # the run has already used it
        after=job.after,
        launch="mpirun" if job.cluster.scheduler == "pbs" else "srun",
        wait=job.wait,
        dry_run=job.dry_run,
        resume=None,
    )


def build_words(request: EvaluationRequest) -> list[str]:
    """Return the arguments of `src/evaluate.py` in the job, with absolute paths since a job may start in another folder."""
    typed = request.typed
    words = [str(request.run.path), "--checkpoint", typed.checkpoint]
    options = {
        "--export": request.export,
        "--to": request.to,
        "--predict": request.predictions,
        "--split": typed.split,
    }
    words += [word for name, value in options.items() if value for word in (name, str(value))]
    if typed.generate is not None:
        words += [f"--generate={typed.generate}", "--tokens", str(typed.tokens)]
        words += ["--temperature", str(typed.temperature), "--seed", str(typed.seed)]
    return words + request.words
