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
"""Key of the number of optimizer steps in each row, as in Lightning's WandbLogger."""

QUIET = {
    "console": "off",
    "silent": True,
    "disable_git": True,
    "disable_code": True,
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

EXIT_CODES = {"failed": 1, "preempted": 75}
"""Exit codes for attempts that did not complete; W&B shows them as failed or preempted."""


class Wandb:
    """A run of Weights & Biases that all attempts share.

    Without internet, a reachable server or an API key, an attempt is written into the run folder, and
    `wandb sync RUN/wandb/offline-run-*` uploads all attempts into the one run, in their order.
    configs/loggers/wandb.yaml explains the keys. Everything is written below `folder`, that of the run.
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
        for variable in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR"):  # by default in the home folder
            os.environ.setdefault(variable, f"{folder}/wandb/cache")
        os.environ.setdefault("WANDB_SILENT", "true")  # else it prompts for a missing key
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        make_folder(Path(folder, "wandb"))  # raises if it can't: W&B would silently write elsewhere
        import wandb

        offline = not internet if offline is None else offline
        known = {k: v for k, v in QUIET.items() if k in wandb.Settings.model_fields}
        about: dict[str, Any] = {"project": project, "entity": entity, "group": group, "tags": tags}
        about |= {"dir": folder, "id": run_id, "name": name or run_id, "config": dict(parameters or {})}
        # "allow" also works offline: the files carry the id, and `wandb sync` appends them to the run
        about |= {"resume": "allow", "settings": wandb.Settings(**{**known, **(settings or {})})}
        mode = "offline" if offline else os.environ.get("WANDB_MODE", "online")
        try:
            self.run = wandb.init(**about, mode=mode)
        except Exception as error:
            if mode == "offline":
                raise
            why = " ".join(str(error).split())[:200].rstrip(".")
            line = f"W&B can't be reached ({why}): this attempt is tracked offline; `wandb sync {folder}/wandb/offline-run-*`"
            print(line, file=sys.stderr, flush=True)
            wandb.teardown()  # its service already has a run with this id
            self.run = wandb.init(**about, mode="offline")
        self.experiment = self.run  # the name of Lightning's loggers
        self.run.define_metric(STEP, hidden=True)
        self.run.define_metric("*", step_metric=STEP)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log a row. W&B's own process sends it."""
        self.run.log({**metrics, STEP: step})

    def finalize(self, status: str) -> None:
        """Finish the run. The `status` is completed, preempted or failed."""
        import wandb

        if status == "preempted":
            self.run.mark_preempting()
        try:
            self.run.finish(exit_code=EXIT_CODES.get(status, 0))
        finally:
            with suppress(Exception):  # if its service has died, it would print errors at the exit of Python
                wandb.teardown()
