"""Evaluate, use or export the model of a run, which may still be training.

    python src/evaluate.py RUN                                  print the metrics on the test split, and save them in the run folder
    python src/evaluate.py RUN --split val --checkpoint newest
    python src/evaluate.py RUN --predict answers.csv            write the prediction for each row
    python src/evaluate.py RUN --predict-files 'photos/*.jpg'   print file, label and probability of new files
    python src/evaluate.py RUN --generate "Once upon" --temperature 0.8
    python src/evaluate.py RUN --export torch                   write the weights as a file of plain tensors
    python src/evaluate.py RUN on=neuron                        run on a host of configs/hosts/, over ssh
    python src/run.py cluster=neuron -- src/evaluate.py RUN     run as a job; RUN is an absolute path

RUN is a run folder or a run id; without it, the newest run. Exit codes: 0 done, 1 an error in user code,
2 refused (nothing was written).
"""

import argparse
from typing import NoReturn

from train_anywhere.commands.elsewhere import here_or_there
from train_anywhere.errors import ProjectError
from train_anywhere.files.root import refuse_deleted_folder
from train_anywhere.files.terminal.output import user_frame
from train_anywhere.files.terminal.printable import printable_output
from train_anywhere.inference.trained_model import check_request, make_parser
from train_anywhere.launch.command import run_command
from train_anywhere.launch.exits import leave
from train_anywhere.launch.failure import print_traceback


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit code; a refusal is one message."""
    parsed = make_parser(__doc__ or "").parse_intermixed_args(arguments)
    with printable_output(log=True):  # the project's code prints too
        return run_command(lambda: carry_out(parsed), overrides=False)


def carry_out(parsed: argparse.Namespace) -> int:
    """Evaluate here and return the exit code."""
    refuse_deleted_folder()
    request = check_request(parsed, [word for word in parsed.words if word != "cluster=local"])
    from train_anywhere.inference.evaluate_run import evaluate  # imports numpy, which a refusal does not need

    try:
        return evaluate(request)
    except Exception as error:
        if isinstance(error, ProjectError | BrokenPipeError) or not user_frame(error):
            raise
        print_traceback(request.run, "evaluate", error)
        return 1


def run() -> NoReturn:
    """Run the command and exit with its code."""
    leave(lambda: here_or_there("src/evaluate.py", main))
