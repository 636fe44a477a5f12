"""Choose the checkpoint whose weights are read, and those of init=RUN or FILE that fit."""

import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint, find_damage, folder_name, load_manifest
from train_anywhere.checkpoints.store import CheckpointStore, Retention
from train_anywhere.config.checks.targets import is_whole_module, task_has_network
from train_anywhere.config.keys import TARGET
from train_anywhere.config.schema import Config, Init
from train_anywhere.errors import CheckpointError, ProjectError, listed
from train_anywhere.files.terminal.printable import printable
from train_anywhere.runs.folder import RunDir, is_waited_for, open_run
from train_anywhere.runs.reopen.frozen import read_frozen

T = TypeVar("T")


def choose(run: RunDir, which: str | int, checksums: bool = True) -> SavedCheckpoint:
    """Return one checkpoint of the run. Raises CheckpointError if it is missing or damaged.

    `which` is a step, "newest", or "best", which is the newest if no value was measured. Without `checksums` only sizes are compared.
    """
    section = read_frozen(run).get("checkpoint")
    mode = section.get("mode") if isinstance(section, dict) else None
    store = CheckpointStore(run.checkpoints, Retention("max" if mode == "max" else "min", keep_last=1))
    try:
        if isinstance(which, int) or which.isdigit():
            folder = run.checkpoints / folder_name(int(which))
            if not folder.is_dir():
                known = listed(str(s.step) for s in store.all())
                lacks = f"{run.path} has no checkpoint of step {which}; it has {known}."
                raise CheckpointError(lacks if known else _none_message(run))
            if damage := find_damage(folder, checksums):
                raise CheckpointError(f"{folder} is damaged ({damage}); name another step, best or newest.")
            return load_manifest(folder)
        best = store.best() if checksums and which == "best" else None
        found = best or store.newest_good(checksums)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoints in {run.checkpoints} can't be read ({error.strerror or error})."
        ) from error
    if found is None:
        raise CheckpointError(_none_message(run))
    return found


def read_chosen(run: RunDir, which: str | int, read: Callable[[SavedCheckpoint], T]) -> T:
    """Return the result of `read` for the chosen checkpoint. Raises CheckpointError as both functions."""
    saved = choose(run, which)
    try:
        return read(saved)
    except (CheckpointError, OSError):
        if saved.path.exists():
            raise
    return read_chosen(run, which, read)  # a training run has removed it meanwhile


def _none_message(run: RunDir) -> str:
    state = run.read_info().get("state")
    then = "; wait for its first one" if state in ("queued", "running") else ""
    return f"{run.path} has no checkpoint that can be read{then}."


Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of weights by name."""

WEIGHT_FILES = (".safetensors", ".ckpt", ".pt", ".pth", ".bin")
"""Endings of files of weights that `init.run` may name."""


def list_weight_files(path: str) -> list[Path]:
    """Return the files of weights that `init.run` names, or [] for the path of a run."""
    if path.endswith(WEIGHT_FILES) and not os.path.isdir(path):
        return [Path(path)]
    if os.path.exists(Path(path, "config.yaml")):
        return []
    return sorted(Path(path).glob("model*.safetensors")) or sorted(Path(path).glob("pytorch_model*.bin"))


def _file_problem(file: Path) -> str:
    """Return what is wrong with a file of weights by its header and length, or ""."""
    if not file.is_file() or not os.access(file, os.R_OK):
        return "can't be read: there is no such file, or you lack the permission."
    head = b""
    damages = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
    with suppress(*damages), open(file, "rb") as opened:
        head = opened.read(32)
        if file.suffix != ".safetensors":  # a zip, or torch.serialization.MAGIC_NUMBER of torch before 1.6
            if zipfile.is_zipfile(opened) or b"l\xfc\x9cF\xf9 j\xa8P\x19" in head:
                return ""
        else:  # https://github.com/huggingface/safetensors#format
            start, size = int.from_bytes(head[:8], "little"), file.stat().st_size
            opened.seek(8)
            header = json.loads(opened.read(start)) if 0 < start <= min(size - 8, 10**8) else {}
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            if header and 8 + start + max(ends, default=0) == size:
                return ""
    if head.startswith(b"version https://git-lfs"):
        return "is the pointer of Git LFS to a file that was not downloaded; type `git lfs pull`."
    return f"is {'not a complete' if head else 'an empty'} {file.suffix} file; copy it again, or save the weights again."


def init_problems(config: Config) -> list[str]:
    """Return what is wrong with `init` before a submission."""
    init = config.init
    if init.run is None or (config.resume is not None and not config.model.lora):  # adapters need their base
        return []
    if files := list_weight_files(init.run):
        if config.framework == "lightning":
            return [f"init.run={file} {problem}" for file in files if (problem := _file_problem(file))]
        return [
            f"init.run={init.run} holds weights for torch, and this is framework={config.framework}; name a run, or load the file "
            "in the function that makes your model."
        ]
    if os.path.isfile(init.run):
        return [f"init.run={init.run} is not a file of weights: those end with {listed(WEIGHT_FILES)}."]
    try:
        run = open_run(init.run)
        frozen = read_frozen(run)
        framework = frozen["framework"]
        if framework != config.framework:
            return [
                f"init.run={init.run} was trained with framework={framework}, and its weights fit only that; "
                f"use framework={framework}, or another run."
            ]
        if not is_waited_for(config.after, run):  # else the job checks it when it starts
            choose(run, init.checkpoint, checksums=False)
        other = _model_problem(config, frozen) if init.strict else None
    except ProjectError as error:
        return [f"init.run={init.run}: {error}"]
    return [other] if other else []


def _model_problem(config: Config, frozen: Mapping[str, Any]) -> str | None:
    """Return a message if the run has trained another network. Shapes are compared later."""
    whole = task_has_network(config.task, config.framework)
    key, section = ("task", config.task) if whole else ("model", config.model)
    source = frozen.get(key)
    if not isinstance(source, Mapping):
        return None
    target = source.get(TARGET)
    target = target.get(config.framework) if isinstance(target, Mapping) else target
    here = section.target.get(config.framework)
    known = {name: source.get(name) for name in section.arguments}
    if target == here and (whole or source.get("name") == section.name or known == dict(section.arguments)):
        return None
    if target != here and (is_whole_module(target) if whole else section.name == "custom"):
        return None  # such as a subclass that freezes layers
    if target == here:
        theirs, ours = f"{key}={source.get('name')}", f"{key}={section.name}"
    else:
        theirs, ours = f"{key}._target_={target}", f"{here}"
    return (
        f"init.run={config.init.run} was trained with {theirs}, and its weights are not all those of {ours}; use the "
        f"same {key}, or init.strict=false to take what fits."
    )


def select_weights(own: Shapes, stored: Shapes, init: Init, report: Callable[[str], None]) -> list[str]:
    """Return and report the weights' names of another run that fit.

    Raises:
        CheckpointError: the weights differ and `init.strict` is true, or none fits.
    """
    taken = [name for name, shape in own.items() if stored.get(name) == shape]
    left = [f"{n} {list(s)}" for n, s in own.items() if n not in taken]
    unused = [f"{n} {list(s)}" for n, s in stored.items() if own.get(n) != s]
    here, there = _format_names(left), _format_names(unused)
    if (left or unused) and init.strict:
        raise CheckpointError(
            f"init.run={init.run} has other weights than this model: here {here}, there {there}; use the same task and model, or "
            "init.strict=false to take what fits."
        )
    if not taken:
        raise CheckpointError(
            f"init.run={init.run} has no weight that fits this model by name and shape: here {here}, there {there}; leave init out."
        )
    report(f"init: {len(taken)} of {len(own)} weights are those of {init.run}.")
    if left or unused:
        report(f"init: not taken, here {here}; there {there}.")
    return taken


def _format_names(names: Sequence[str]) -> str:
    return printable(listed(names)) if names else "nothing else"
