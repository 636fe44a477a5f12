"""Old names of modules, which run folders, configurations and the code of forks still use."""

import pkgutil
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGES = {
    "slurm": "slurm",
    "src.after": "inference",
    "src.checkpoints": "checkpoints",
    "src.config": "config",
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
"""Packages before the engine was a package, and the name of each in this version, below `train_anywhere`."""

MODULES = """
src.checkpoints checkpoints choose=choice initial=init_run usable=resume_check
src.checkpoints checkpoints.disk disk=writes staging manifest event_files plain_zip
src.config config open=open_groups
src.config config.checks checks=contradictions batch=batch_size batch_norm folders=writable monitors metric_names
src.config config.checks strategies=strategy_table targets
src.config config.command command_line compose diagnose explained sentences refusal yaml_files members json_schema
src.data data arrays=array_data base=dataset sets=open_data archives download listing
src.data data.order ahead=prefetch batch=fits draws=random_numbers keep=keep_batch order=assignment shuffle
src.data data.tf tf_arrays=arrays tf_drop_in=unpadded tf_groups=groups tf_pipeline=pipeline tf_samples=samples tf_streams=streams
src.data data.torch torch_arrays=arrays torch_draws=draws torch_foreign=user_loader torch_loader=loader torch_order=unpadded
src.data data.torch torch_samples=samples
src.distributed distributed.horovod build_horovod=build horovod_corrections=corrections horovod_init=initialize
src.distributed distributed.horovod horovod_install=installation
src.distributed distributed.network network=addresses listening lost_rank hostlist
slurm features.after following=dependency
slurm slurm.scheduler chain=job_chain
src.monitor features.hangs hangs judge=supervisor meeting=startup ending=kill_ranks stacks stragglers watch=rank_watch
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
src.after inference asked=request command=evaluate_run files=output_files job=evaluation_job opening=trained_model predictions
src.launch launch ahead=preflight leaving=exits local=local_run sweep=local_sweep
src.monitor monitor facts=run_facts
src.runs runs awaited=dependency ranks=rank_reports info=run_info
src.runs runs.reopen resume from_scratch completed=completion frozen trust
src.search search cluster=cluster_trials here=local_trials table=trial_table start=start_search
slurm.rules slurm.rules folders=local_folders installed=local_packages limits=site_limits request=rule_request starting=launch_rules
slurm.scaling slurm.scaling start=start_table table=timing_table
slurm slurm.scheduler client queue waiting=queue_poller ownership
slurm slurm.script job render units begin=begin_time facts=format_checks gpu_hours environment=clean_environment
slurm slurm.status runs=find_runs show_logs ran_here=local_runs
slurm.status slurm.status report=run_status page=text_page watch=watch_runs commands=next_commands
slurm.status slurm.status.sources ended=job_end files=run_files gather pending samples=node_samples
slurm runs git=provenance
slurm slurm.submission launch=prepare submit rollback snapshot left_out=exclusions evaluation trials resubmit dry_run allocation
slurm.testbed slurm.testbed config=testbed_config cluster=testbed_cluster errors=testbed_errors
src.training training monitors=monitored_metric network=native_network
src.training.keras training.keras after=inference initial=initial_weights loaders=batches make=native
src.training.keras training.keras.checkpoint checkpoint=state buffers position random_state callback_state
src.training.keras training.keras.dropin dropin=model building=variables counting=metric_sums gradients trainable
src.training.keras training.keras.dropin others=user_callbacks batch_norm=norm_layers
src.training.keras training.keras.loop loop=epochs callbacks calls=steps_per_call pace tensorboard agreement
src.training.keras.strategies training.keras.strategies make=choose
src.training.lightning training.lightning after=inference loaders=batches initial=initial_weights parts=rank_splits
src.training.lightning training.lightning.checkpoint checkpoint=state buffers position random_state plain=plain_values restoring=restorer
src.training.lightning training.lightning.checkpoint weights=stored_weights
src.training.lightning training.lightning.checkpoint rank_state shards shard_reader shard_writer
src.training.lightning training.lightning.dropin dropin=model connector sharing=logged_values loggers answers=predictions trained=trainable
src.training.lightning training.lightning.dropin measured=validated_weights
src.training.lightning training.lightning.loop fast_loop clock pace waiting=wait_timer callbacks early_stop agreement tensorboard
src.training.lightning.strategies training.lightning.strategies make=choose later=deferred_weights device=rank_device store=rendezvous
src.training training.reporting progress throughput peak metrics_csv
src.training.tracking training.tracking open=open_loggers
"""
"""Each line is an old package, the new package below `train_anywhere`, and the modules that moved: `old=new`, or one name for both."""

RENAMED_LATER = """
checkpoints.usable checkpoints.resume_check
config.command.explained config.command.help_comments
config.here config.resolve_node_path
config.unwritable config.write_problem
data.order.fits data.order.batch_check
data.order.keep_batch data.order.batch_file
data.tf.unpadded data.tf.unpadded_batches
data.torch.draws data.torch.random_states
data.torch.unpadded data.torch.unpadded_batches
distributed.framework_env distributed.horovod.rank_variables
distributed.network.listening distributed.network.rendezvous_socket
features.Part features.NodeService
features.after.following features.after.dependency
features.hangs.verdict features.hangs.supervisor
files.marked files.owned_folder
inference.opening inference.trained_model
runs.reopen.completed runs.reopen.completion
slurm.scheduler.jobs_in_turn slurm.scheduler.job_chain
slurm.scheduler.wait_for_jobs slurm.scheduler.queue_poller
slurm.script.begin slurm.script.begin_time
slurm.script.readable slurm.script.format_checks
slurm.status.sources.ended slurm.status.sources.job_end
slurm.submission.git runs.provenance
slurm.submission.left_out slurm.submission.exclusions
training.keras.dropin.building training.keras.dropin.variables
training.keras.dropin.counting training.keras.dropin.metric_sums
training.keras.loop.calls training.keras.loop.steps_per_call
training.lightning.checkpoint.plain training.lightning.checkpoint.plain_values
training.lightning.checkpoint.read_weights training.lightning.checkpoint.stored_weights
training.lightning.checkpoint.restoring training.lightning.checkpoint.restorer
training.lightning.dropin.answers training.lightning.dropin.predictions
training.lightning.dropin.measured training.lightning.dropin.validated_weights
training.lightning.dropin.sharing training.lightning.dropin.logged_values
training.lightning.dropin.trained training.lightning.dropin.trainable
training.lightning.loop.waiting training.lightning.loop.wait_timer
training.lightning.training_check training.lightning.loop.training_check
training.lightning.strategies.later_weights training.lightning.strategies.deferred_weights
training.monitored training.monitored_metric
training.resuming training.resume_messages
training.tracking.once training.tracking.sent_metrics
"""
"""Each line is an old and a new name below `train_anywhere`, of a module or of a public function or class. A later rename comes last."""


def _old_names() -> dict[str, str]:
    rows = [line.split() for line in MODULES.strip().splitlines()]
    pairs = ((old, new, name.partition("=")) for old, new, *names in rows for name in names)
    moved = {f"{old}.{before}": f"{new}.{after or before}" for old, new, (before, _, after) in pairs}
    packages = {f"{new}." for new in moved.values()}
    # for a while the engine had the modules under these names too; a name that a package has now means the package
    inside = {old.removeprefix("src."): new for old, new in {**moved, "src.after": "inference"}.items()}
    lately = {old: new for old, new in inside.items() if not any(p.startswith(f"{old}.") for p in packages)}
    later = dict(line.split() for line in RENAMED_LATER.strip().splitlines())
    names = PACKAGES | moved | {f"train_anywhere.{old}": new for old, new in (lately | later).items()}
    found = {old: f"train_anywhere.{_rename_later(new, later)}" for old, new in names.items()}
    return {old: new for old, new in found.items() if old != new}


def _rename_later(name: str, later: dict[str, str]) -> str:
    for old, new in later.items():
        if name == old or name.startswith(f"{old}."):
            name = new + name.removeprefix(old)
    return name


CURRENT_NAMES = _old_names()
"""Prefixes of old dotted names, and the names in this version."""


def current_name(dotted: str) -> str:
    """Return the current name of a module, or of something in it; return other names unchanged."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        if new := CURRENT_NAMES.get(".".join(parts[:length])):
            return ".".join([new, *parts[length:]])
    return dotted


def update_tree(tree: dict[str, Any]) -> None:
    """Replace old names in each `_target_` and `_check_` of a configuration, which may contain itself."""
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
            one[key] = (
                {k: _update(v) for k, v in named.items()} if isinstance(named, dict) else _update(named)
            )
        todo += one.values()


def _update(name: Any) -> Any:
    return current_name(name) if isinstance(name, str) else name


def update_override(line: str) -> str:
    """Return an override such as `task._target_=src.mine.Task` with the current name."""
    key, equals, value = line.partition("=")
    return f"{key}={current_name(value)}" if equals and key.endswith(tuple(NAMING)) else line


NAMING = {"_target_", "_check_"}
"""Keys of a configuration whose values are dotted names."""


class OldNames(MetaPathFinder, Loader):
    """Import hook for old names, which warns. It is the last finder, so a fork's own module of that name is found first."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for an old name, None for other names."""
        known = fullname.count(".") and current_name(fullname) != fullname
        return ModuleSpec(fullname, self) if known else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the current module, function or class in the place of the old module."""
        old = module.__name__
        _warn(old, current_name(old))
        sys.modules[old] = pkgutil.resolve_name(current_name(old))


def accept_old_methods(cls: type, names: Mapping[str, str]) -> None:
    """Give a class that defines methods or attributes by their old names the current ones too; `names` maps old to current."""
    for old, new in names.items():
        if old in vars(cls) and new not in vars(cls):
            _warn(f"{cls.__module__}.{cls.__qualname__}.{old}", new, stack=4)  # the line of the class
            setattr(cls, new, vars(cls)[old])


def old_attribute(old: str, new: str) -> Any:
    """Return a property for the old name of an attribute."""

    def read(self: Any) -> Any:
        _warn(f"{type(self).__name__}.{old}", new)
        return getattr(self, new)

    return property(read)


def _warn(old: str, new: str, stack: int = 3) -> None:
    message = f"{old} is called {new} now; the old name works until version 1.0."
    warnings.warn(message, FutureWarning, stacklevel=stack)
