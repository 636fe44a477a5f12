"""Weights & Biases: `loggers=wandb`."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from train_anywhere.files.atomic import make_folder
from train_anywhere.training.tracking import checks

STEP = "trainer/global_step"
"""Key of the number of optimizer steps done in each row; frameworks use the same name."""

QUIET = {
    "console": "off",
    "silent": True,
    "disable_git": True,
    "disable_code": True,
    "save_code": False,
    "x_disable_meta": True,
    "x_save_requirements": False,
    "x_disable_stats": True,
    "x_transaction_log_flush_interval": 1.0,
    "init_timeout": 30.0,
    "finish_timeout": 30.0,
}
"""Default settings, as far as the installed version knows them.

What W&B would collect (output, commit, GPU use) is in the run folder already. Rows are flushed each second: by default a killed job loses
those of the last 15 seconds. The timeouts keep training from waiting long for a server.
"""

ENVIRONMENT = {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
"""Default environment of this process. W&B prompts for a missing key unless it is silent."""

EXIT_CODES = {"failed": 1, "preempted": 75}
"""Exit codes for attempts that did not complete; W&B shows them as failed or preempted."""


class Wandb:
    """A run of Weights & Biases that all attempts share.

    Without internet, a reachable server or an API key, an attempt is written into the run folder, and
    `wandb sync RUN/wandb/offline-run-*` uploads all attempts into the one run, in their order.

    A resumed run repeats the steps after its checkpoint bit for bit. An online attempt leaves out those before the last one at the server.

    Args:
        project: project of the run at W&B.
        name: name of the run; `run_id` by default.
        entity: user or team at W&B.
        group: group of runs.
        tags: tags of the run.
        offline: whether to write files only; None: if the site has no internet.
        settings: further `wandb.Settings`.
        folder: run folder; everything is written below it.
        run_id: id of the run at W&B.
        parameters: the configuration with dotted keys.
    """

    def __init__(
        self,
        project: str,
        name: str | None = None,
        entity: str | None = None,
        group: str | None = None,
        tags: list[str] | None = None,
        offline: bool | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        folder: str,
        run_id: str,
        internet: bool = True,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        checks.wandb()
        cache = str(Path(folder, "wandb", "cache"))  # by default in the home folder
        for variable, value in {**ENVIRONMENT, "WANDB_CACHE_DIR": cache, "WANDB_DATA_DIR": cache}.items():
            os.environ.setdefault(variable, value)
        make_folder(Path(folder, "wandb"))  # raises if it can't: W&B would silently write elsewhere
        self.about: dict[str, Any] = {"project": project, "entity": entity, "group": group, "tags": tags}
        self.about |= {"id": run_id, "name": name or run_id, "dir": folder, "config": dict(parameters or {})}
        self.settings = {**QUIET, **(settings or {})}
        self.run = self.experiment = self._start(offline=not internet if offline is None else offline)
        self.last_step = _last_step(self.run)
        self.run.define_metric(STEP, hidden=True)
        self.run.define_metric("*", step_metric=STEP)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log a row, unless the server has rows of a later step."""
        if step >= self.last_step:
            self.run.log({**metrics, STEP: step})

    def finalize(self, status: str) -> None:
        """Finish the run. The `status` is completed, preempted or failed."""
        if status == "preempted":
            self.run.mark_preempting()
        try:
            self.run.finish(exit_code=EXIT_CODES.get(status, 0))
        finally:
            self._stop_service()

    def _start(self, offline: bool) -> Any:
        """Start the run, offline if the server can't be reached."""
        mode = "offline" if offline else os.environ.get("WANDB_MODE", "online")
        try:
            return self._init(mode)
        except Exception as error:
            if mode == "offline":
                raise
            why = " ".join(str(error).split())[:200].rstrip(".")
            line = f"W&B can't be reached ({why}): this attempt is tracked offline; `wandb sync {self.about['dir']}/wandb/offline-run-*`"
            print(line, file=sys.stderr, flush=True)
            self._stop_service()  # it already has a run with this id
            return self._init("offline")

    def _init(self, mode: str) -> Any:
        import wandb

        self.offline = mode != "online"
        known = {k: v for k, v in self.settings.items() if k not in QUIET or k in wandb.Settings.model_fields}
        settings = wandb.Settings(**known)
        # "allow" also works offline: the files carry the id, and `wandb sync` appends them to the run
        return wandb.init(**self.about, mode=mode, resume="allow", settings=settings)

    def _stop_service(self) -> None:
        """Stop W&B's service process, which would print errors at the exit of Python if it had died."""
        import wandb

        with suppress(Exception):
            wandb.teardown()


def _last_step(run: Any) -> int:
    """Return the optimizer step of the last row at the server, or 0."""
    step = run.summary.get(STEP)
    known = isinstance(step, int) and run.summary.get("_step") == run.starting_step - 1
    return step if known else 0
