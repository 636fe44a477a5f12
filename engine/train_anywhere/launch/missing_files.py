"""One message for a rank that can't download a file, in a job without internet."""

import os
import re
import shlex
import traceback
from contextlib import suppress

from train_anywhere.config.schema import Config
from train_anywhere.errors import DataError, ProjectError, iterate_causes
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.resume import read_run_overrides

CLIENTS = ("huggingface_hub", "urllib", "requests", "httpx", "httpcore")
"""Packages whose errors are those of a connection."""

LIBRARIES = (
    *("huggingface_hub", "transformers", "diffusers", "datasets", "peft", "timm", "torchvision"),
    *("sentence_transformers", "open_clip", "torch.hub", "keras.src.utils.file_utils"),
)
"""Packages and modules that download weights. A callback that reports to a server has none of them in its traceback."""

SENTENCES = re.compile(
    r"couldn't connect to|can ?not find the requested files|URL fetch failure|outgoing traffic has been disabled|offline mode",
    re.IGNORECASE,
)
"""Matches messages of libraries about files that are not in their caches."""


def missing_file_error(config: Config, run: RunDir, error: BaseException) -> DataError | None:
    """Return the error with the command that fetches the files; None if this is another error, or the run has internet."""
    offline = config.cluster.scheduler != "none" or os.environ.get("HF_HUB_OFFLINE") == "1"
    if (isinstance(error, ProjectError) and not error.__cause__) or not offline:
        return None
    found = next((cause for cause in iterate_causes(error) if _is_connection(cause)), None)
    if found is None or not any(map(_is_of_library, iterate_causes(error))):
        return None
    words: list[str] = []
    with suppress(ProjectError):
        words = read_run_overrides(run)
    why = (str(found).strip().splitlines() or [type(found).__name__])[0]
    return DataError(
        f"a file is not in the cache, and this job can't download it ({why.rstrip('.')}). Type on a login node, which has internet: "
        f"{shlex.join(['python', 'src/fetch.py', *words])}; then resume the run."
    )


def _is_connection(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in CLIENTS or bool(SENTENCES.search(str(error)))


def _is_of_library(error: BaseException) -> bool:
    """Return whether the error, or a function that it came through, is of a library that downloads weights."""
    frames = traceback.walk_tb(error.__traceback__)
    modules = [type(error).__module__, *(str(frame.f_globals.get("__name__")) for frame, _ in frames)]
    return any(f"{module}.".startswith(f"{name}.") for module in modules for name in LIBRARIES)
