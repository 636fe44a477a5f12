"""Download what a run needs from the internet, on a login node: weights, tokenizers and data.

    python -m train_anywhere fetch cluster=narval task._target_=mine.Classifier

Takes the arguments of `src/train.py`. It builds the run's data and model once, in a separate process, so that libraries download their
files into `cluster.cache`, where the job finds them. Exit codes: 0 done, 1 an error in user code, 2 refused, or a download failed.
"""

import os
import subprocess
import sys

from train_anywhere.commands.elsewhere import here_or_there, read_request
from train_anywhere.config.schema import Config
from train_anywhere.features import Features
from train_anywhere.files import with_engine
from train_anywhere.files.terminal.fit import fit_page, terminal_width
from train_anywhere.launch.command import HELP, run_command

BUILD = "--build"
"""First argument of the process that downloads."""


def main(arguments: list[str]) -> int:
    """Run the command and return its exit code; a refusal is one message."""
    if HELP & {*arguments}:
        print(fit_page(__doc__ or "", terminal_width()))
        return 0
    if arguments[:1] == [BUILD]:
        from train_anywhere.training.prepare import build

        return run_command(lambda: build(read_request(arguments[1:])[0]))
    return here_or_there("-m train_anywhere fetch", lambda: run_command(lambda: fetch(arguments)))


def fetch(arguments: list[str]) -> int:
    """Start the process that downloads, with the cache of the run, and return its exit code."""
    config, _ = read_request(arguments)
    os.makedirs(config.cluster.cache or ".", exist_ok=True)  # a cache that can't be made is refused
    weights = Features.of(config).exported.get("weights", {})
    own = [f"{name}={value}" for name, value in os.environ.items() if value and name in weights]
    print(
        f"fetching into {', '.join([config.cluster.cache or 'the caches of the libraries', *own])}",
        flush=True,
    )
    command = [sys.executable, "-m", "train_anywhere", "fetch", BUILD, *arguments]
    code = subprocess.run(command, env=with_engine(make_environment(config)), check=False).returncode
    print("done: jobs find these files." if code == 0 else "error: not all files were fetched.", flush=True)
    return code


def make_environment(config: Config) -> dict[str, str]:
    """Return the environment of the process that downloads, with the token of the user's own login at the hub."""
    exported = Features.of(config).exported.get("weights", {})
    weights = {name: value for name, value in exported.items() if not os.environ.get(name)}
    own = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    token = os.environ.get("HF_TOKEN_PATH") or os.path.join(own, "token")
    made = {**os.environ, "HF_TOKEN_PATH": token, **weights}
    return {name: value for name, value in made.items() if not name.endswith("_OFFLINE")}
