"""Train a model: here, or on the cluster that `cluster=` names.

python src/train.py                                   # here, now
python src/train.py cluster=neuron trainer.nodes=4    # submitted; returns at once
python src/train.py --run RUNDIR                      # one rank of a run that exists: what jobs start
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # the project's folder: src, slurm, hydra_plugins
import slurm  # noqa: E402, F401
import src  # noqa: E402, F401

sys.path.append(sys.path.pop(0))  # they are found; other imports would look there first, and in vain
os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of exiting, so that `main` can name all problems

from src.errors import INTERRUPTED, REFUSED, ProjectError  # noqa: E402
from src.files.output import escape_characters, trouble  # noqa: E402


def application() -> int:
    """Compose the configuration with Hydra, then run here. With a cluster preset or `-m` Hydra's launcher did the rest."""
    import hydra
    from omegaconf import DictConfig

    composed: list[DictConfig] = []

    # called with the configuration, or a launcher does the work and it is not
    @hydra.main(version_base="1.3", config_path="../configs", config_name="train")
    def keep(config: DictConfig) -> None:
        composed.append(config)

    compose_once()
    keep()
    if not composed:
        return 0
    from src.config.environment_values import plain
    from src.launch.local import start

    return start(plain(composed[0]), sys.argv[1:])


def compose_once() -> None:
    """Make Hydra keep what it composes first, to learn `hydra.mode`: for what follows it would compose the same again."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.types import RunMode

    load = ConfigLoaderImpl.load_configuration
    kept: dict[tuple[str | None, ...], Any] = {}

    def load_once(
        self: Any, config_name: str | None, overrides: list[str], run_mode: RunMode, **how: Any
    ) -> Any:
        key = (config_name, *overrides)
        if run_mode != RunMode.MULTIRUN:
            if key not in kept:
                return load(self, config_name, overrides, run_mode, **how)
            parsed = OverridesParser.create().parse_overrides(overrides)
            self.validate_sweep_overrides_legal(parsed, run_mode, from_shell=True)  # a sweep needs -m
        elif key not in kept:  # made with the checks of sweeps, which Hydra leaves out the first time
            kept[key] = load(self, config_name, overrides, run_mode)
        return kept[key]

    ConfigLoaderImpl.load_configuration = load_once  # type: ignore[method-assign, assignment]


def main() -> int:
    """The exit code; a refused request is one message and the code of its error."""
    typed: list[str] = []  # the overrides, as far as they are known
    escape_characters()
    try:
        if sys.argv[1:2] == ["--run"]:
            return one_rank(sys.argv[2:])
        return command(sys.argv[1:], typed)
    except BrokenPipeError:  # `| head`: what was to be done is done
        sys.stdout = None
        return 0
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        from src.config.refusal import refusal

        sweep = "-m" in sys.argv or "--multirun" in sys.argv
        of_output = isinstance(error, OSError) and error.errno is not None and error.filename is None
        message = (trouble() if of_output else None) or refusal(error, typed, sweep)
        if message is None:
            raise
        with suppress(OSError):  # the exit code says it too
            print(f"error: {message}", file=sys.stderr, flush=True)
        return error.exit_code if isinstance(error, ProjectError) else REFUSED


def one_rank(arguments: list[str]) -> int:
    """`--run RUNDIR`: what a job starts, once for each rank."""
    from src.launch.rank import run_rank

    if len(arguments) != 1:
        raise ProjectError("--run takes one run folder: python src/train.py --run RUNDIR.")
    return run_rank(arguments[0])


def command(arguments: list[str], typed: list[str]) -> int:
    """Read the command line, tell its overrides in `typed`, then do what it asks."""
    from src.config.command_line import here, split
    from src.config.compose import CONFIGS, quoted
    from src.config.yaml_files import refuse_unusable
    from src.runs.resume import saved_overrides

    here()
    refuse_unusable(CONFIGS)
    line = split(arguments)
    typed += line.overrides
    typed[:] = [quoted(a) for a in [*saved_overrides(line.overrides), *line.overrides]]
    sys.argv[1:] = [*typed, *line.flags]
    code = application()
    if sys.stdout is not None:
        sys.stdout.flush()  # a full disk is told here, not by Python's own end
    return code


if __name__ == "__main__":
    sys.exit(main())
