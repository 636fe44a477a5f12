"""MLflow: `loggers=mlflow`."""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from train_anywhere.training.tracking import checks

TAG = "run_id"
"""Tag that identifies a run in later attempts."""

STATES = {"failed": "FAILED", "preempted": "SCHEDULED"}
"""MLflow's run status after an attempt that did not complete; a preempted run waits for its next attempt."""

ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # else only a database is a store
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",  # seconds; at the start all ranks wait for the server's first answer
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
}
"""Default environment of this process."""

PARAMETERS = 100
"""Largest number of parameters in one call."""

CLOSE_S = 45.0
"""Seconds that the end of training waits for unsent rows; a job that is being stopped has about two minutes."""


class MLflow:
    """A run of MLflow that all attempts share. Rows are sent in a thread.

    configs/loggers/mlflow.yaml explains the keys. Files in the run folder are shown by
    `MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri RUN/mlruns`.

    `tracking_uri` is a server or store; None: MLFLOW_TRACKING_URI if it is set and the run is not offline, else files in the run folder.
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
    ) -> None:
        checks.mlflow()
        for variable, value in ENVIRONMENT.items():
            os.environ.setdefault(variable, value)
        import mlflow

        offline = not internet if offline is None else offline
        anywhere = None if offline else os.environ.get("MLFLOW_TRACKING_URI")
        mlflow.set_tracking_uri(tracking_uri or anywhere or Path(folder, "mlruns").absolute().as_uri())
        # another run may create it at the same time
        experiment = mlflow.set_experiment(project).experiment_id
        self.client = self.experiment = mlflow.MlflowClient()  # the second is the name of Lightning's loggers
        runs = self.client.search_runs([experiment], filter_string=f"tags.`{TAG}` = '{run_id}'")
        if runs:  # earlier attempts created it
            self.id = runs[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
        else:
            named = {**(tags or {}), TAG: run_id}
            self.id = self.client.create_run(experiment, tags=named, run_name=name or run_id).info.run_id
        self._log_parameters(parameters or {})
        self._rows: SimpleQueue[list[Any] | None] = SimpleQueue()
        self._lost, self._error = 0, ""
        self._thread = Thread(target=self._send, name="mlflow", daemon=True)
        self._thread.start()

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Queue a point of each metric, and return at once. Steps that are trained again get a second one."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._rows.put([Metric(_valid_name(name), value, now, step) for name, value in metrics.items()])

    def finalize(self, status: str) -> None:
        """Send the rows that are left within `CLOSE_S` seconds, and set the status. Raises ConnectionError for lost rows."""
        self._rows.put(None)
        self._thread.join(CLOSE_S)
        # a thread that still waits for an answer has taken one row, and the queue has the final None in its place
        if lost := self._lost + self._rows.qsize():
            raise ConnectionError(f"{lost} rows were not sent, but metrics.csv has them: {self._error}")
        state = STATES.get(status, "FINISHED")
        if state == "SCHEDULED":
            # set_terminated would also set an end time
            self.client.update_run(self.id, status=state)
        else:
            self.client.set_terminated(self.id, status=state)

    def _send(self) -> None:
        while (row := self._rows.get()) is not None:
            try:
                self.client.log_batch(self.id, metrics=row)
            except Exception as error:
                self._lost, self._error = self._lost + 1, str(error)

    def _log_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Log the parameters. One that a resumed run has changed becomes a tag."""
        from mlflow.entities import Param, RunTag

        values = {_valid_name(name): str(value)[:6000] for name, value in parameters.items()}
        there = self.client.get_run(self.id).data.params
        new = [Param(name, value) for name, value in values.items() if name not in there]
        changed = [RunTag(n, v) for n, v in values.items() if n in there and there[n] != v]
        for at in range(0, len(new), PARAMETERS):
            self.client.log_batch(self.id, params=new[at : at + PARAMETERS])
        if changed:
            self.client.log_batch(self.id, tags=changed)


def _valid_name(name: str) -> str:
    """Return the name with the characters that MLflow rejects replaced by underscores."""
    return re.sub(r"[^\w\-. /:]", "_", name)
