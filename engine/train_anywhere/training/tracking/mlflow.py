"""MLflow: `loggers=mlflow`."""

import os
import re
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from train_anywhere.training.tracking import checks
from train_anywhere.training.tracking.once import Once, Pair

TAG = "run_id"
"""The tag by which a run is found again."""

STATES = {"failed": "FAILED", "preempted": "SCHEDULED"}
"""MLflow's words for how an attempt ended; a preempted one waits for the next."""

ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # else only a database is a store
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",  # seconds; all ranks wait for the first answer at the start,
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # and what a server refuses later is offered again
}
"""Of this process, unless the user's says otherwise."""

PARAMETERS = 100
"""At most, in one call."""


class MLflow:
    """One run of MLflow, through all attempts.

    Args:
        project: name of the experiment.
        name: of the run; `run_id` by default.
        tracking_uri: a server or store; None: MLFLOW_TRACKING_URI where that is set and the run is not offline, else files in the
            run folder, which any disk takes: MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri RUN/mlruns
        offline: whether to write files in the run folder unless `tracking_uri` is given; None: where the site has no internet.
        tags: more of them.
        folder: run folder.
        run_id: by which the run is found again.
        internet: whether the site has it.
        parameters: the configuration, dotted keys.
        first_step: optimizer steps done by earlier attempts.
        seen: metrics that earlier attempts have logged, in case that the store does not say.
    """

    def __init__(
        self,
        project: str,
        name: str | None = None,
        tracking_uri: str | None = None,
        offline: bool | None = None,
        tags: Mapping[str, str] | None = None,
        *,
        folder: str,
        run_id: str,
        internet: bool = True,
        parameters: Mapping[str, Any] | None = None,
        first_step: int = 0,
        seen: Collection[Pair] = (),
    ) -> None:
        checks.mlflow()
        for variable, value in ENVIRONMENT.items():
            os.environ.setdefault(variable, value)
        from mlflow.tracking import MlflowClient

        offline = not internet if offline is None else offline
        anywhere = None if offline else os.environ.get("MLFLOW_TRACKING_URI")
        self.client = MlflowClient(tracking_uri or anywhere or Path(folder, "mlruns").absolute().as_uri())
        experiment = self._experiment(project)
        self.id = self._found(experiment, run_id)
        if resumed := self.id is not None:
            self.client.update_run(self.id, status="RUNNING")
        else:
            named = {**(tags or {}), TAG: run_id}
            self.id = self.client.create_run(experiment, tags=named, run_name=name or run_id).info.run_id
        self._describe(parameters or {})
        self.once = Once(self._held(first_step, seen) if resumed else ())

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log what no earlier attempt has logged for this number of optimizer steps."""
        from mlflow.entities import Metric

        stored = {_stored(name): value for name, value in metrics.items()}
        now = int(time.time() * 1000)
        fresh = self.once.fresh(stored, step).items()
        if fresh:
            self.client.log_batch(self.id, metrics=[Metric(name, value, now, step) for name, value in fresh])

    def finalize(self, status: str) -> None:
        """The attempt has ended: completed, preempted or failed."""
        state = STATES.get(status, "FINISHED")
        if state == "SCHEDULED":
            self.client.update_run(self.id, status=state)  # it has no end yet
        else:
            self.client.set_terminated(self.id, status=state)

    def _experiment(self, name: str) -> str:
        """The id of the experiment, which another run may make at the same time."""
        from mlflow.exceptions import MlflowException

        if found := self.client.get_experiment_by_name(name):
            return found.experiment_id
        try:
            return self.client.create_experiment(name)
        except MlflowException:
            if found := self.client.get_experiment_by_name(name):
                return found.experiment_id
            raise

    def _found(self, experiment: str, run_id: str) -> str | None:
        """The tracked run of earlier attempts."""
        runs = self.client.search_runs([experiment], filter_string=f"tags.`{TAG}` = '{run_id}'")
        return runs[0].info.run_id if runs else None

    def _describe(self, parameters: Mapping[str, Any]) -> None:
        """The parameters; a tag for one that a resumed run has changed, since MLflow keeps the first value."""
        from mlflow.entities import Param, RunTag

        values = {_stored(name): str(value)[:6000] for name, value in parameters.items()}
        there = self.client.get_run(self.id).data.params
        new = [Param(name, value) for name, value in values.items() if name not in there]
        changed = [RunTag(n, v) for n, v in values.items() if n in there and there[n] != v]
        for at in range(0, len(new), PARAMETERS):
            self.client.log_batch(self.id, params=new[at : at + PARAMETERS])
        if changed:
            self.client.log_batch(self.id, tags=changed)

    def _held(self, since: int, seen: Collection[Pair]) -> Collection[Pair]:
        """The metrics that the run has from optimizer step `since` on."""
        names = self.client.get_run(self.id).data.metrics
        try:
            points = {name: self.client.get_metric_history(self.id, name) for name in names}
        except Exception:  # a killed process may leave half a line in a file
            return {(_stored(name), step) for name, step in seen}
        return {(name, p.step) for name, history in points.items() for p in history if p.step >= since}


def _stored(name: str) -> str:
    """The name as MLflow takes it."""
    return re.sub(r"[^\w\-. /:]", "_", name)
