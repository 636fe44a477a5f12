"""The launcher of any Hydra program: `python app.py -m hydra/launcher=anywhere`.

It starts `python -m train_anywhere submit`, so that a submission changes nothing in the user's process. A job runs the same command line
with the overrides of one member and `hydra.launcher.member=...`, and `run_member` in place of `Hydra.multirun`.

Hydra imports all plugins at each start, so this module imports only Hydra at the top.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus, configure_log, run_job, setup_globals
from hydra.errors import CompactHydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

MEMBER = "hydra.launcher.member="
"""Start of the override by which a job knows its member."""

ANSWERS = ".anywhere"
"""Folder in the sweep's with the value that each member has returned."""

BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
"""The only sweeper that needs no results."""


def register(module: str) -> None:
    """Register the launcher in `module` with Hydra, and make a process of a job run its member."""
    # any key may be typed: an unknown one gets a message that says what to type
    node = OmegaConf.create({"_target_": f"{module}.AnywhereLauncher"}, flags={"struct": False})
    ConfigStore.instance().store(group="hydra/launcher", name="anywhere", node=node)
    if any(word.startswith(MEMBER) for word in sys.argv[1:]):
        Hydra.multirun = run_member  # type: ignore[method-assign, assignment]


class AnywhereLauncher(Launcher):
    """Launcher that submits to `hydra.launcher.cluster`. Its keys are those of `src/run.py` without their sections."""

    def __init__(self, **keys: Any) -> None:
        self.keys: Any = OmegaConf.to_container(OmegaConf.create(keys))

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what Hydra passes before `launch`."""
        self.context, self.config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Submit the members, and with `wait=true` return what they return. A refusal is printed, and the process exits."""
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        members = [list(member) for member in job_overrides]
        configs = [self.context.config_loader.load_sweep_config(self.config, member) for member in members]
        sweep, sweeper = Path(os.path.abspath(str(self.config.hydra.sweep.dir))), self.config.hydra.sweeper
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        times = {key[0]: value for key, value in OmegaConf.get_cache(self.config).get("now", {}).items()}
        numbers = range(initial_job_idx, initial_job_idx + len(members))
        common = {"cwd": os.getcwd(), "sweep": str(sweep), "times": times}
        # the command line of a member is what was typed, with its overrides in place of those of the sweep
        swept = [*self.config.hydra.overrides.task]
        request = {
            "keys": self.keys, "name": str(self.config.hydra.job.name), "results": str(sweeper.get("_target_")) != BASIC,
            "file": os.path.abspath(getattr(main, "__file__", None) or sys.argv[0]), "direction": str(sweeper.get("direction")),
            "module": spec.name.removesuffix(".__main__") if spec else None, "typed": sys.argv[1:], "members": members,
            "kept": [word for word in sys.argv[1:] if word not in swept],
            "states": [quote(json.dumps(common | {"number": number})) for number in numbers],
        }  # fmt: skip
        states = submit(request)
        if not states:  # a dry run, or all is done on a host: a sweeper can't continue
            sys.exit(0)
        waited = bool(self.keys.get("wait"))
        files = [sweep / ANSWERS / f"{number}.json" if waited else None for number in numbers]
        return [_job_return(*both) for both in zip(configs, members, states, files, strict=True)]


def submit(request: dict[str, Any]) -> list[str]:
    """Submit in another process. Return why each member has no result, "" if it has one; empty if nothing was submitted here.

    Exits with the code of a refusal.
    """
    answer, written = os.pipe()
    command = [sys.executable, "-m", "train_anywhere", "submit", str(written)]
    sys.stdout.flush()
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, pass_fds=[written]) as process:
        os.close(written)
        with suppress(KeyboardInterrupt):  # it gets Ctrl-C too, and prints what it has done
            process.communicate(json.dumps(request))
        code = process.wait()
    with open(answer) as file:
        text = file.read()
    if code:
        sys.exit(code)
    return [*json.loads(text or "[]")]


def _job_return(config: DictConfig, member: Sequence[str], state: str, file: Path | None) -> JobReturn:
    """Return the result of a member for the sweeper: what it returned, or an error that reading it raises."""
    found: dict[str, Any] = {} if file else {"value": None}
    with suppress(OSError, ValueError):
        found = json.loads(file.read_text()) if file else found
    status = JobStatus.FAILED if state or "value" not in found else JobStatus.COMPLETED
    hydra_config = OmegaConf.create({"hydra": config.hydra})
    with open_dict(config):
        config.pop("hydra")
    why = " ".join(filter(None, [state, found.get("error", "It returned nothing.")]))
    value = CompactHydraException(why) if status == JobStatus.FAILED else found["value"]
    return JobReturn(overrides=member, hydra_cfg=hydra_config, cfg=config, status=status, _return_value=value)


def run_member(
    hydra: Hydra, config_name: str | None, task_function: TaskFunction, overrides: list[str], **_: bool
) -> JobReturn:
    """Run the member that the command line names, as Hydra's own launcher does."""
    [word] = [word for word in overrides if word.startswith(MEMBER)]
    state, words = json.loads(unquote(word.removeprefix(MEMBER))), [w for w in overrides if w != word]
    master = hydra.compose_config(config_name, words, RunMode.MULTIRUN, with_log_configuration=True)
    OmegaConf.get_cache(master)["now"] = {(key,): value for key, value in state["times"].items()}
    config = hydra.config_loader.load_sweep_config(master, [*master.hydra.overrides.task])
    with open_dict(config):
        config.hydra.job.id = os.environ.get("TRAIN_JOB", str(state["number"]))
        config.hydra.job.num = state["number"]
        config.hydra.sweep.dir, config.hydra.runtime.cwd = state["sweep"], state["cwd"]
    context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(master))
    returned = run_job(task_function, config, "hydra.sweep.dir", "hydra.sweep.subdir", context)
    if os.environ.get("RANK", "0") == "0":
        _answer(Path(state["sweep"], ANSWERS, f"{state['number']}.json"), returned)
    _ = returned.return_value  # raises what the program raised
    return returned


def _answer(file: Path, returned: JobReturn) -> None:
    """Write what a member has returned, and a number as its metric `objective`. Its log has the whole of an error."""
    value, key = returned._return_value, "value"
    with suppress(Exception):  # a tensor or an array of one number
        value = value.item()
    if returned.status == JobStatus.FAILED:
        key, value = "error", f"{type(value).__name__}: {value}".splitlines()[0][:300]
    try:
        text = json.dumps({key: value})
    except (TypeError, ValueError):
        text = json.dumps({"error": f"It returned a {type(value).__name__}, which JSON does not have."})
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)  # a reader waits for the end of the job
    if isinstance(value, int | float):
        with suppress(OSError, KeyError), open(os.environ["TRAIN_METRICS"], "a") as metrics:
            metrics.write(f"{json.dumps({'objective': float(value)})}\n")
