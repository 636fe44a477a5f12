"""Untrusted values in a run folder, and the record of those allowed before.

A run folder may come from anyone. A value that runs code, opens a connection or a port, reads the environment or names a folder to
write to is used only if this project's configuration or the command line has the same one, or if this user has run it from the same
folder before. That is recorded in the user's state folder (https://specifications.freedesktop.org/basedir-spec), not in a run folder.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any

from train_anywhere.config.keys import CHECK, LIST_GROUPS, SINGLE_GROUPS, TARGET, flatten
from train_anywhere.config.load import FOLDERS, to_tree
from train_anywhere.config.paths import expand, make_absolute
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, SubmitError
from train_anywhere.files.atomic import open_file, try_read
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import split_overrides
from train_anywhere.runs.summary import resume_command

SHELL = ("cluster.setup", "cluster.modules", "cluster.conda", "cluster.venv", "cluster.extra")
"""Keys whose values become part of the batch script or of the options of the scheduler."""

COMMANDS = (
    "monitor.dashboard", "program.command", "program.copied", "program.folder", "program.resume_args", "args", "train",
)  # fmt: skip
"""Keys whose values are commands that run as the ranks or next to them, in a job or not."""

REQUESTS = (
    "name", "scheduler", "account", "partition", "qos", "time", "time_min", "gpu_type", "gres", "cpus_per_task", "mem",
    "mem_per_gpu", "mem_per_cpu", "constraint", "reservation", "exclude", "nodelist", "check", "exclusive", "begin", "nice",
    "max_gpu_hours", "gpu_request", "launch", "requeue", "no_kill", "retries", "signal_seconds", "chain", "max_running", "site",
)  # fmt: skip
"""Keys of `cluster` that only state what a job requests and what its site allows. Any other key may do more."""

OWN = (TARGET, CHECK, "name", "batch_size", "workers", "stage", "from_data", "lr", "scale_lr", "no_decay", "groups", "lora",
       "interval")  # fmt: skip
"""Keys of a section with a target that are not arguments of the target."""

READ = ("dir", "files", "text_key", "tokenizer", "documents", "small_images", "checkpoint_activations")
"""Arguments of this project's targets that never name a folder to write to or a network address."""

NOT_EVALUATED = (*LIST_GROUPS, "optimizer", "schedule", "checkpoint", "monitor", "init", "paths", "cluster")
"""Sections that an evaluation does not use."""

RECORD = "trusted"
"""File in the user's state folder with one digest per line of each allowed value."""

VARIABLE = re.compile(r"\$\{|(?<!\\)\$\w")
"""Matches a part of a value that is replaced by an environment variable."""

RESOLVER = re.compile(r"\A(?!note=).*\$\{.*:", re.DOTALL)
"""Matches an override of which OmegaConf computes a part, such as from the environment or the clock; a note is text."""


def find_code(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of {'cluster.setup': [...], ...} that run as code."""
    submits, contained = flat.get("cluster.scheduler") != "none", flat.get("container.name") != "none"

    def runs(key: str, value: object) -> bool:
        if key in COMMANDS or "_target_" in f"{key} {value}" or key.endswith("._check_"):
            return True
        return submits and (key in SHELL or (contained and key.startswith("container.")))

    return {k: v for k, v in flat.items() if v and runs(k, v)}


def find_outward_values(flat: Mapping[str, Any], training: bool = True) -> dict[str, str]:
    """Return the keys whose values may affect anything outside the run folder.

    The values say what they do, as the end of a sentence.

    `flat` is a configuration as {'loggers.wandb.project': 'digits', ...}. Without `training`, an evaluation uses fewer sections.
    """
    found = {
        k: "would read your environment" for k, v in flat.items() if VARIABLE.search(f"{v}") and k != "note"
    }
    for key, value in flat.items():
        used = training or key.partition(".")[0] not in NOT_EVALUATED
        if key not in found and used and _is_outward(key, value, flat):
            starts = isinstance(value, bool)
            found[key] = (
                f"may {'start a download or an upload' if starts else 'connect, listen, read or write'} as you"
            )
    return found | dict.fromkeys(find_code(flat), "would run as you")


def _is_outward(key: str, value: Any, flat: Mapping[str, Any]) -> bool:
    group, name, *_ = (*key.split("."), "")
    if group in LIST_GROUPS:  # null and false too: loggers.wandb.offline
        return bool(name)
    if group in SINGLE_GROUPS:  # an argument of a target may be an address or a folder to write to
        targets = [t for k, t in flat.items() if k.startswith(f"{group}.{TARGET}")]
        if not targets or name in OWN or _is_number(value):
            return False
        read = all(str(t).startswith(("src.", "train_anywhere.")) for t in targets) and name in READ
        return not read or (name == "dir" and bool(flat.get(f"{group}.download")))
    if key.startswith("trainer.extra."):  # such as a model hub to upload to
        return not (isinstance(value, bool) or _is_number(value))
    if value in (None, False, "", []):
        return False
    if group == "cluster":
        site = ("cluster.site.login", "cluster.site.internet", "cluster.local_disk")
        return key in site or (flat.get("cluster.scheduler") != "none" and name not in REQUESTS)
    return key in ("monitor.serve", "monitor.serve_address", "init.run") or (
        key == "checkpoint.local" and value != "auto"
    )


def _is_number(value: Any) -> bool:
    if isinstance(value, list | Mapping):
        return all(map(_is_number, value.values() if isinstance(value, Mapping) else value))
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def refuse_untrusted(
    folder: Path,
    flat: Mapping[str, Any],
    known: Mapping[str, Any],
    training: bool = True,
    lines: Sequence[str] = (),
) -> None:
    """Refuse values that only the run folder has and that may affect anything outside it.

    `flat` is the configuration to run, and `known` what this project and the command line compose without the run folder. The overrides
    `lines` are those that `find_untrusted_lines` has found. With `trust=true` the caller does not call this function.

    Raises:
        ConfigError: one sentence for each value.
    """
    trusted = _read_trusted()
    found = {f"{line!r} in overrides.txt": "would read your environment" for line in lines} | {
        f"{k}={flat[k]!r}": does
        for k, does in find_outward_values(flat, training).items()
        if not _same(k, flat[k], known.get(k)) and _digest(folder, k, flat[k]) not in trusted
    }
    if found:
        end = "and is not in this project's configuration: read it, and add trust=true to run it."
        raise ConfigError(
            *(f"the run folder {folder} brings {w}, which {does} {end}" for w, does in found.items())
        )


def _same(key: str, value: Any, known: Any) -> bool:
    """Return whether two values are equal. A folder may be given relative to the project."""
    if key in FOLDERS and not VARIABLE.search(f"{value}"):
        with suppress(ValueError, AttributeError, TypeError):  # no such user, not a string
            return make_absolute(expand(value)) == make_absolute(expand(known))
    return bool(value == known)


def find_untrusted_lines(folder: Path, lines: Sequence[str]) -> list[str]:
    """Return overrides that read the environment and that this user has not run."""
    resolved, trusted = filter(RESOLVER.search, lines), _read_trusted()
    return [line for line in resolved if _digest(folder, "overrides.txt", line) not in trusted]


def remember(folder: Path, config: Config) -> None:
    """Record that this user has run the configuration: `resume=` needs no trust=true."""
    remember_values(folder, flatten(to_tree(config)))


def is_trusted(folder: Path, flat: Mapping[str, Any]) -> bool:
    """Return whether this user has run each value of a run folder that would need `trust=true`."""
    trusted = _read_trusted()
    return all(_digest(folder, key, flat[key]) in trusted for key in find_outward_values(flat))


def remember_values(folder: Path, flat: Mapping[str, Any]) -> None:
    """Record that this user has run the values of a configuration as {'model.name': 'mlp', ...}."""
    _add(_digest(folder, k, flat[k]) for k in find_outward_values(flat))
    lines = split_overrides(try_read(folder / "overrides.txt"))
    _add(_digest(folder, "overrides.txt", line) for line in filter(RESOLVER.search, lines))


def record(path: Path, key: str, value: object) -> None:
    """Record something that this user has done with a file or a run folder, such as the job submitted for it."""
    _add([_digest(path, key, value)])


def is_recorded(path: Path, key: str, value: object) -> bool:
    """Return whether `record` was called with these arguments."""
    return _digest(path, key, value) in _read_trusted()


def refuse_foreign_script(script: Path, trust: bool) -> None:
    """Refuse a batch script that this user has not submitted.

    Raises:
        SubmitError: the script is not recorded, and the message names `--trust`.
    """
    if not trust and not is_recorded(script, "script", _read_hex(script)):
        raise SubmitError(
            f"{script} is not a script that you have submitted from there, and it would run as you: read it, and add --trust "
            f"to submit it; or run today's code with `{resume_command(RunDir(script.parent), path='RUN')}`."
        )


def is_first_note(file: Path, note: str) -> bool:
    """Record that this user has seen a note about a file, and return whether it is new."""
    known = is_recorded(file, "note", note)
    record(file, "note", note)
    return not known


def remember_script(script: Path) -> None:
    """Record that this user has submitted the script, with the code next to it."""
    record(script, "script", _read_hex(script))
    record(script.parent, "code", _read_code(script.parent))


def is_known_code(folder: Path) -> bool:
    """Return whether this user has submitted the code in a run folder, as it is now."""
    return is_recorded(folder, "code", _read_code(folder))


def _read_code(folder: Path) -> str:
    """Return a checksum of what Python can import from `folder`/code."""
    found = hashlib.sha256()
    for top, folders, files in os.walk(folder / "code"):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for path in (Path(top, name) for name in sorted(files) if name.endswith((*all_suffixes(),))):
            found.update(os.fsencode(path.relative_to(folder)) + b"\0")
            with suppress(OSError), open_file(path, "rb") as file:  # of a link only the name
                found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


def _read_hex(script: Path) -> str:
    try:
        return script.read_bytes().hex()
    except OSError as error:
        raise SubmitError(f"{script} can't be read: {error.strerror}.") from error


def _digest(path: Path, key: str, value: object) -> str:
    try:
        written = json.dumps([os.path.realpath(path), key, value])
    except (TypeError, ValueError):  # YAML has dates and lists that contain themselves, JSON does not
        written = json.dumps([os.path.realpath(path), key, repr(value)])
    return hashlib.sha256(written.encode()).hexdigest()


def state_folder() -> Path:
    """Return the folder for what belongs to this user. Raises RuntimeError without a home."""
    named = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(named) if named.startswith("/") else Path("~/.local/state").expanduser()
    return folder / "train-anywhere"


def _read_trusted() -> set[str]:
    """Return the digests in the record. Empty if other users can write it."""
    with suppress(OSError, RuntimeError, ValueError):
        record = state_folder() / RECORD
        status = record.stat()
        if status.st_uid == os.getuid() and not status.st_mode & 0o022:
            return set(record.read_text().split())
    return set()


def _add(digests: Iterable[str]) -> None:
    trusted = _read_trusted()
    new = [d for d in digests if d not in trusted]
    with suppress(OSError, RuntimeError):  # with a read-only home trust=true is needed each time
        if new:
            state_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.open(state_folder() / RECORD, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(file, "a") as record:
                record.write("".join(f"{d}\n" for d in new))
