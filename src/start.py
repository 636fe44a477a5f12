"""From a composed configuration to a run folder, and training in it on this machine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from src.completed import complete, is_complete
from src.devices import local_devices, local_ranks, no_gpu, visible_gpus
from src.from_scratch import refuse_unreadable, set_aside
from src.matrix import resolve_strategy
from src.resume import resumed
from src.rundir import ROOT, RunDir, create, open_run, write_atomic
from src.schema import Config, load
from src.summary import shown


def start(tree: Mapping[str, Any], overrides: Sequence[str]) -> int:
    """Check, make or reopen the run folder, train; returns the exit code.

    Args:
        tree: the composed configuration.
        overrides: the command line, kept in the run folder.

    Raises:
        ConfigError: with all problems, before anything is written.
        CheckpointError: where another job trains in the run folder, or none of its checkpoints can be read.
    """
    from src.local import refuse_second_start, run_here
    from src.lock import RunLock

    run = open_run(tree["resume"]) if tree["resume"] else None
    tree = resumed(tree, run) if run else dict(tree)
    config = load(tree, here_problems)
    refuse_second_start()
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
    if run and config.from_scratch and (kept := set_aside(run)):
        print(f"from_scratch=true: what the run had is kept in {shown(kept)}.", flush=True)
    run = run or create(absolute(config.paths.results), config.name)
    freeze(run, tree, overrides)
    run.update(**identity(config), state="queued")
    return run_here(config, run)


def freeze(run: RunDir, tree: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Write the configuration that the ranks read: complete, resolved, with absolute paths."""
    import yaml

    paths = {k: str(absolute(v)) for k, v in tree["paths"].items()}
    data = {k: str(absolute(v)) if k == "dir" else v for k, v in tree["data"].items()}
    kept = [o for o in overrides if not o.startswith(("-", "resume=", "dry_run=", "from_scratch="))]
    write_atomic(
        run.config,
        yaml.safe_dump({**tree, "paths": paths, "data": data, "from_scratch": False}, sort_keys=False),
    )
    write_atomic(run.overrides, "".join(o + "\n" for o in dict.fromkeys(kept)))


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


def here_problems(config: Config) -> list[str]:
    """What one machine can't do: several nodes, a batch that its devices can't share, Horovod where it is missing."""
    problems = []
    if config.trainer.nodes > 1:
        problems.append(
            f"trainer.nodes={config.trainer.nodes} needs a cluster and cluster={config.cluster.name} is this machine; "
            "name one with cluster=..., or use trainer.nodes=1."
        )
    devices = local_devices(config)
    if devices > 0 and config.data.batch_size % devices:
        problems.append(
            f"data.batch_size={config.data.batch_size} is the global batch and can't be shared evenly by {devices} "
            f"devices; use data.batch_size={max(1, config.data.batch_size // devices) * devices}."
        )
    if config.trainer.accelerator == "gpu" and visible_gpus() == 0:
        problems.append(no_gpu("this machine"))
    if config.strategy.name == "horovod":
        from src.horovod_build import horovod_problem  # reads what is installed

        if problem := horovod_problem(config.framework):
            problems.append(f"{problem} Without Horovod: strategy=auto.")
    return problems


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


def absolute(path: str) -> Path:
    """A path of the configuration: `~` expanded, a relative one taken below the project's folder."""
    return ROOT / Path(path).expanduser()
