"""From a composed configuration to a run folder, and training in it on this machine."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from src.checkpoints.usable import refuse_unreadable
from src.config.folders import results_problems, unwritable
from src.config.paths import absolute, expand, here, unexpanded
from src.config.schema import Config, load
from src.config.strategies import resolve_strategy
from src.distributed.devices import local_devices, local_ranks, no_gpu, visible_gpus
from src.errors import DataError
from src.files.atomic import write_keeping
from src.launch.ahead import data_problems
from src.runs.completed import complete, is_complete
from src.runs.folder import ATTEMPTS, RunDir, create, open_run, point_latest
from src.runs.from_scratch import set_aside
from src.runs.resume import ONE_COMMAND, flatten, resumed
from src.runs.summary import display_path
from src.runs.trust import remember


def start(tree: Mapping[str, Any], overrides: Sequence[str]) -> int:
    """Check, make or reopen the run folder, train; returns the exit code.

    Args:
        tree: the composed configuration.
        overrides: the command line, kept in the run folder.

    Raises:
        ConfigError: with all problems, before anything is written.
        CheckpointError: where another job trains in the run folder, or none of its checkpoints can be read.
    """
    from src.launch.processes import refuse_nested_launch, run_here
    from src.runs.lock import RunLock

    run = open_run(tree["resume"]) if tree["resume"] else None
    tree = resumed(tree, run, overrides) if run else dict(tree)
    config = load(tree, local_problems)
    refuse_nested_launch()
    if run:
        RunLock(run).refuse_if_held()
        if is_complete(run, config):
            print(complete(run, config))
            return 0
        if not config.from_scratch:
            refuse_unreadable(run)
    if config.dry_run:
        print(resolved_numbers(config))
        return 0
    results = absolute(config.paths.results)
    before = results / os.readlink(results / "latest") if (results / "latest").is_symlink() else None
    new = run is None
    if run and config.from_scratch and (kept := set_aside(run)):
        print(f"from_scratch=true: what the run had is kept in {display_path(kept)}.", flush=True)
    run = run or create(results, config.name)
    freeze(run, tree, overrides)
    run.update(**identity(config), state="queued")
    code = run_here(config, run)
    if new and before and before.is_dir() and never_trained(run):
        point_latest(results, before)
    return code


def never_trained(run: RunDir) -> bool:
    """Whether a run failed before its first step, such as for its data: `latest` is no name for it."""
    info = run.info()
    return info.get("state") == "failed" and all("from_step" not in a for a in info.get(ATTEMPTS, []))


def freeze(run: RunDir, tree: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """`write_frozen`, and this user lets the configuration run from there."""
    write_frozen(run, tree, overrides)
    remember(run.path, flatten(tree))


def write_frozen(run: RunDir, tree: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Write the configuration that the ranks read: complete, resolved, with absolute paths.

    Where a run goes on with another one, the one from before is kept beside it as config.yaml.1 and so on.
    """
    import yaml

    paths = {k: _kept(v) for k, v in tree["paths"].items()}
    data = {k: _kept(v) if k == "dir" else v for k, v in tree["data"].items()}
    kept = [o for o in overrides if not ONE_COMMAND.match(o)]
    write_keeping(
        run.config,
        yaml.safe_dump({**tree, "paths": paths, "data": data, "from_scratch": False}, sort_keys=False),
    )
    write_keeping(run.overrides, "".join(o + "\n" for o in dict.fromkeys(kept)))


def _kept(path: str) -> str:
    return unexpanded(str(absolute(expand(path))))


def identity(config: Config) -> dict[str, Any]:
    """What run.json says of a run before it starts."""
    devices = local_devices(config)
    return {
        "framework": config.framework,
        "strategy": resolve_strategy(config, devices, nodes=1),
        "launch": "local",
        "cluster": config.cluster.name,
        "world_size": devices,
    }


def local_problems(config: Config) -> list[str]:
    """What one machine can't do: several nodes, a batch that its devices can't share, folders, data or a Horovod that are not there."""
    devices = local_devices(config)
    problems = [
        *no_scheduler(config),
        *_nodes(config),
        *_shares(config, devices),
        *data_problems(config, devices),
    ]
    if config.resume is None:
        problems += results_problems(absolute(config.paths.results), config.name)
    problems += _local_disk(config.checkpoint.local)
    if config.trainer.accelerator == "gpu" and visible_gpus() == 0:
        problems.append(no_gpu("this machine"))
    if config.strategy.name == "horovod":
        from src.distributed.horovod_install import horovod_problem  # reads what is installed

        if problem := horovod_problem(config.framework):
            problems.append(f"{problem} Without Horovod: strategy=auto.")
    return problems


def no_scheduler(config: Config) -> list[str]:
    """A scheduler named beside `cluster=local`, which submits nothing."""
    if config.cluster.scheduler == "none":
        return []
    kind = config.cluster.scheduler
    return [
        f"cluster={config.cluster.name} is this machine and has no cluster.scheduler={kind}; use cluster={kind} to submit a job."
    ]


def _nodes(config: Config) -> list[str]:
    if config.trainer.nodes == 1:
        return []
    return [
        f"trainer.nodes={config.trainer.nodes} needs a cluster and cluster={config.cluster.name} is this machine; "
        "name one with cluster=..., or use trainer.nodes=1."
    ]


def _shares(config: Config, devices: int) -> list[str]:
    if config.data.batch_size % devices == 0:
        return []
    return [
        f"data.batch_size={config.data.batch_size} is the global batch and can't be shared evenly by {devices} "
        f"devices; use data.batch_size={max(1, config.data.batch_size // devices) * devices}."
    ]


def _local_disk(wish: str | None) -> list[str]:
    """`checkpoint.local`, where it names a folder."""
    if wish in (None, "auto"):
        return []
    try:
        words = unwritable(absolute(here(expand(wish))))
    except (OSError, ValueError, DataError) as error:
        words = str(error)
    return (
        [f"checkpoint.local={wish}: {words}; use checkpoint.local=auto or another folder."] if words else []
    )


def resolved_numbers(config: Config) -> str:
    """What `dry_run=true` shows for a run on this machine."""
    devices = local_devices(config)
    rows = {
        "framework": config.framework,
        "strategy": resolve_strategy(config, devices, nodes=1),
        "processes": local_ranks(config),
        "devices": devices,
        "global batch": config.data.batch_size,
        "batch per device": config.data.batch_size // devices,
        "run folder": f"{absolute(config.paths.results) / config.name}/<run id>",
    }
    return "\n".join(f"{k:<18}{v}" for k, v in rows.items()) + "\ndry run: nothing was written or started."
