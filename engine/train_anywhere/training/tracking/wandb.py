"""Weights & Biases: `loggers=wandb`."""

import os
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from train_anywhere.files.ordinary import make_folder
from train_anywhere.training.tracking import checks
from train_anywhere.training.tracking.once import Once, Pair
from train_anywhere.training.tracking.wandb_log import STEP, held

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
"""Settings unless `settings` says otherwise, those that the installed version knows. The run folder has output, commit and speed of the
GPUs; a row is on the disk within a second, or a killed job would lose those of the last 15; nothing waits long for a server."""

ENVIRONMENT = {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
"""Of this process, unless the user's says otherwise. Only silent W&B asks no questions where a key is missing."""

EXIT_CODES = {"failed": 1, "preempted": 75}
"""Of a run that did not get to its end; W&B shows it as failed or preempted."""


class Wandb:
    """One run of Weights & Biases, through all attempts.

    Without internet, and where the server can't be reached or no key is there, an attempt is written into the run folder:
    `wandb sync RUN/wandb/offline-run-*` brings all attempts into the one run, in their order.

    Args:
        project, name, entity, group, tags: of the run at W&B; its name is `run_id` by default.
        offline: whether to write files only; None: where the site has no internet.
        settings: more of `wandb.Settings`.
        folder: run folder; everything is written below it.
        run_id: the id of the run at W&B.
        internet: whether the site has it.
        parameters: the configuration, dotted keys.
        first_step: optimizer steps done by earlier attempts.
        seen: metrics that earlier attempts have logged, in case that W&B's own files can't be read.
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
        first_step: int = 0,
        seen: Collection[Pair] = (),
    ) -> None:
        checks.wandb()
        cache = str(Path(folder, "wandb", "cache"))  # else files in the home
        for variable, value in {**ENVIRONMENT, "WANDB_CACHE_DIR": cache, "WANDB_DATA_DIR": cache}.items():
            os.environ.setdefault(variable, value)
        make_folder(Path(folder, "wandb"))  # W&B would go elsewhere if it could not
        self.about: dict[str, Any] = {"project": project, "entity": entity, "group": group, "tags": tags}
        self.about |= {"id": run_id, "name": name or run_id, "dir": folder, "config": dict(parameters or {})}
        self.settings = {**QUIET, **(settings or {})}
        self.run = self._start(offline=not internet if offline is None else offline)
        rows_there = None if self.offline else self.run.starting_step
        self.once = Once(_held(Path(folder), run_id, first_step, rows_there, seen))
        self.run.define_metric(STEP, hidden=True)
        self.run.define_metric("*", step_metric=STEP)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log what no earlier attempt has logged for this number of optimizer steps."""
        if fresh := self.once.fresh(metrics, step):
            self.run.log({**fresh, STEP: step})

    def finalize(self, status: str) -> None:
        """The attempt has ended: completed, preempted or failed."""
        if status == "preempted":
            self.run.mark_preempting()
        try:
            self.run.finish(exit_code=EXIT_CODES.get(status, 0))
        finally:
            self._stop_service()

    def _start(self, offline: bool) -> Any:
        """The run, and one without a server if that can't be had."""
        mode = "offline" if offline else os.environ.get("WANDB_MODE", "online")
        try:
            return self._init(mode)
        except Exception as error:
            if mode == "offline":
                raise
            why = " ".join(str(error).split())[:200].rstrip(".")
            line = f"W&B can't be reached ({why}): this attempt is tracked offline; `wandb sync {self.about['dir']}/wandb/offline-run-*`"
            print(line, file=sys.stderr, flush=True)
            self._stop_service()  # it has a run of this id
            return self._init("offline")

    def _init(self, mode: str) -> Any:
        import wandb

        self.offline = mode != "online"
        known = {k: v for k, v in self.settings.items() if k not in QUIET or k in wandb.Settings.model_fields}
        settings = wandb.Settings(**known)
        # a run without a server can't be asked about: its files carry the id, and `wandb sync` appends them
        return wandb.init(**self.about, mode=mode, resume="allow", settings=settings)

    def _stop_service(self) -> None:
        """End W&B's process; at the end of Python it would complain if it had died."""
        import wandb

        with suppress(Exception):
            wandb.teardown()


def _held(
    folder: Path, run_id: str, since: int, rows_there: int | None, seen: Collection[Pair]
) -> Collection[Pair]:
    try:
        return held(folder, run_id, since, rows_there)
    except Exception:  # the format of the files is W&B's own affair
        return seen
