"""Names that modules had before the engine was a package; run folders, configurations and code of forks still use them."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGES = {
    "slurm": "slurm",
    "src.after": "inference",
    "src.checkpoints": "checkpoints",
    "src.config": "config",
    "src.data.text": "data.text",
    "src.distributed": "distributed",
    "src.doctor": "commands.doctor",
    "src.errors": "errors",
    "src.evaluate": "commands.evaluate",
    "src.files": "files",
    "src.jobs": "commands.jobs",
    "src.launch": "launch",
    "src.monitor": "monitor",
    "src.report": "commands.report",
    "src.runs": "runs",
    "src.scaling": "commands.scaling",
    "src.search": "search",
    "src.tasks.base": "tasks",
    "src.train": "commands.train",
    "src.training": "training",
}
"""Old packages, and today's name of each below `train_anywhere`."""

MODULES = """
src.checkpoints checkpoints choose=choice initial=init_run
src.checkpoints checkpoints.disk disk=writes staging manifest event_files plain_zip
src.config config open=open_groups
src.config config.checks checks=contradictions batch=batch_size batch_norm folders=writable monitors metric_names
src.config config.checks strategies=strategy_table targets
src.config config.command command_line compose diagnose explained sentences refusal yaml_files members json_schema
src.data data arrays=array_data base=dataset sets=open_data archives download listing
src.data data.order ahead=prefetch batch=fits draws=random_numbers keep=keep_batch order=assignment shuffle
src.data.text data.text build=token_files cache=token_cache parts=document_split
src.data data.tf tf_arrays=arrays tf_drop_in=unpadded tf_groups=groups tf_pipeline=pipeline tf_samples=samples tf_streams=streams
src.data data.torch torch_arrays=arrays torch_draws=draws torch_foreign=user_loader torch_loader=loader torch_order=unpadded
src.data data.torch torch_samples=samples
src.distributed distributed.horovod build_horovod=build horovod_corrections=corrections horovod_init=initialize
src.distributed distributed.horovod horovod_install=installation
src.distributed distributed.network network=addresses listening lost_rank hostlist
slurm features.after following
slurm slurm.scheduler chain=jobs_in_turn
src.monitor features.hangs hangs judge=verdict meeting=startup ending=kill_ranks stacks stragglers watch=rank_watch
src.checkpoints features.interval interval
slurm.packed features.pack_env archive environment=virtual_env unpack
src.runs features.replay replay=bad_loss
src.training features.nan_watch nan_watch
src.training features.replay replay=recompute
src.monitor features.restarts script_watch
src.runs features.restarts again=restart
src.runs features.bad_nodes bad_nodes=nodes_file
src.monitor features.sampler sampler gpus machine curves
src.monitor features.serve serve=servers board dashboard
src.data features.stage stage=copy
src.launch features.stage stage=each_node
src.files files clock=disk_clock
src.files files.terminal output printable telling=byte_progress
src.after inference asked=request command=evaluate_run files=output_files job=evaluation_job opening predictions
src.launch launch ahead=preflight local=local_run sweep=local_sweep
src.monitor monitor facts=run_facts
src.runs runs ranks=rank_reports info=run_info
src.runs runs.reopen resume from_scratch completed frozen trust
src.search search cluster=cluster_trials here=local_trials table=trial_table start=start_search
slurm.rules slurm.rules folders=local_folders installed=local_packages limits=site_limits request=rule_request starting=launch_rules
slurm.scaling slurm.scaling start=start_table table=timing_table
slurm slurm.scheduler client queue waiting=wait_for_jobs ownership
slurm slurm.script job render units begin facts=readable gpu_hours environment=clean_environment
slurm slurm.status runs=find_runs show_logs ran_here=local_runs
slurm.status slurm.status report=run_status page=text_page watch=watch_runs commands=next_commands
slurm.status slurm.status.sources ended files=run_files gather pending samples=node_samples
slurm slurm.submission launch=prepare submit rollback snapshot left_out git evaluation trials resubmit dry_run allocation
slurm.testbed slurm.testbed config=testbed_config cluster=testbed_cluster errors=testbed_errors
src.training training monitors=monitored network=native_network
src.training.keras training.keras after=inference loaders=batches make=native
src.training.keras training.keras.checkpoint checkpoint=state buffers position random_state callback_state
src.training.keras training.keras.dropin dropin=model building counting gradients others=user_callbacks trainable batch_norm=norm_layers
src.training.keras training.keras.loop loop=epochs callbacks calls pace tensorboard agreement
src.training.keras.strategies training.keras.strategies make=choose
src.training.lightning training.lightning after=inference loaders=batches
src.training.lightning training.lightning.checkpoint checkpoint=state buffers position random_state plain restoring weights=read_weights
src.training.lightning training.lightning.checkpoint rank_state shards shard_reader shard_writer
src.training.lightning training.lightning.dropin dropin=model connector sharing loggers answers trained measured
src.training.lightning training.lightning.loop fast_loop clock pace waiting callbacks early_stop agreement tensorboard
src.training.lightning.strategies training.lightning.strategies make=choose later=later_weights device=rank_device store=rendezvous
src.training training.reporting progress throughput peak metrics_csv
src.training.tracking training.tracking open=open_loggers
"""
"""In each line an old package, today's package below `train_anywhere`, and modules that it took over: `old=new`, or one name for both."""


def _old_names() -> dict[str, str]:
    modules = [line.split() for line in MODULES.strip().splitlines()]
    pairs = ((old, new, name.partition("=")) for old, new, *names in modules for name in names)
    moved = {f"{old}.{before}": f"{new}.{after or before}" for old, new, (before, _, after) in pairs}
    packages = {f"{new}." for new in moved.values()}
    # the engine had them too for a while, below its own name; where a package has that name now, it means the package
    inside = {old.removeprefix("src."): new for old, new in {**moved, "src.after": "inference"}.items()}
    lately = {old: new for old, new in inside.items() if not any(p.startswith(f"{old}.") for p in packages)}
    return {
        **PACKAGES,
        **moved,
        **{f"train_anywhere.{old}": new for old, new in lately.items() if old != new},
    }


OLD = {old: f"train_anywhere.{new}" for old, new in _old_names().items()}
"""Prefixes of dotted names, and today's."""


def renamed(dotted: str) -> str:
    """Return today's name of a module or of something in it; other names are returned as they are."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        if new := OLD.get(".".join(parts[:length])):
            return ".".join([new, *parts[length:]])
    return dotted


def update_tree(tree: dict[str, Any]) -> None:
    """Write today's names into each `_target_` and `_check_` of a configuration, which may contain itself."""
    todo: list[Any] = [tree]
    seen: set[int] = set()
    while todo:
        one = todo.pop()
        if id(one) in seen or not isinstance(one, dict | list):
            continue
        seen.add(id(one))
        if isinstance(one, list):
            todo += one
            continue
        for key in NAMING & one.keys():
            named = one[key]
            one[key] = {k: _today(v) for k, v in named.items()} if isinstance(named, dict) else _today(named)
        todo += one.values()


def _today(name: Any) -> Any:
    return renamed(name) if isinstance(name, str) else name


def in_override(line: str) -> str:
    """Return an override, `task._target_=src.mine.Task`, with today's name."""
    key, equals, value = line.partition("=")
    return f"{key}={renamed(value)}" if equals and key.endswith(tuple(NAMING)) else line


NAMING = {"_target_", "_check_"}
"""Keys of a configuration whose values are names."""


class OldNames(MetaPathFinder, Loader):
    """Imports a module by its old name, with a warning. It comes last: a fork's own module of that name is found first."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for an old name, None for any other."""
        known = fullname.count(".") and renamed(fullname) != fullname
        return ModuleSpec(fullname, self) if known else None

    def exec_module(self, module: ModuleType) -> None:
        """Put today's module in the place of the old one."""
        old = module.__name__
        warnings.warn(
            f"{old} is called {renamed(old)} now; the old name works until version 1.0.",
            FutureWarning,
            stacklevel=2,
        )
        sys.modules[old] = importlib.import_module(renamed(old))
