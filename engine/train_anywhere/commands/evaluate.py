"""Measure, use or export what a run has learnt. It may still be training: its folder is read, and nothing of it is changed.

    python src/evaluate.py RUN                                  its metrics on the test split, printed and kept in the run folder
    python src/evaluate.py RUN --split val --checkpoint newest
    python src/evaluate.py RUN --predict answers.csv            what it answers to each row
    python src/evaluate.py RUN --generate "Once upon" --tokens 200 --temperature 0.8
    python src/evaluate.py RUN --export torch                   its weights as a file of plain tensors
    python src/evaluate.py RUN cluster=neuron                   the same as a job with one device
    python src/evaluate.py RUN cluster=neuron after=RUN         which begins when RUN is complete

RUN is a run folder or a run id; without it, the newest run. Exit codes: 0 done, 2 refused (nothing was written).
"""

import argparse
import sys
from typing import NoReturn

from train_anywhere.errors import INTERRUPTED, ProjectError
from train_anywhere.files.terminal.printable import printable_output
from train_anywhere.inference.evaluation_job import after_of, job_config, of_the_job, words_of
from train_anywhere.inference.request import ask, parser
from train_anywhere.launch.leaving import leave
from train_anywhere.launch.preflight import data_problems
from train_anywhere.slurm.presets import name_current
from train_anywhere.slurm.submission import evaluation


def main(arguments: list[str] | None = None) -> int:
    """The exit code; a refusal is one message."""
    parsed = parser(__doc__ or "").parse_intermixed_args(arguments)
    with printable_output(log=True):  # own code prints too
        return carry_out(parsed)


def carry_out(parsed: argparse.Namespace) -> int:
    """Evaluate here or submit that; returns the exit code."""
    try:
        if job := of_the_job(parsed.words):
            return submit(parsed, job)
        from train_anywhere.inference.evaluate_run import (
            evaluate,  # imports numpy, which a submission does without
        )

        return evaluate(ask(parsed, parsed.words))
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `| head`
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        return INTERRUPTED


def submit(parsed: argparse.Namespace, job: list[str]) -> int:
    """Submit the same as a job with one device; `job` are the words that say where and how it runs."""
    asked = ask(parsed, [word for word in parsed.words if word not in job], after_of(job))
    where = name_current(job) if "cluster=current" in job else job
    return evaluation.start(job_config(asked, where), asked.run, words_of(asked), data_problems)


def run() -> NoReturn:
    """Run the command and exit with its code."""
    leave(main)
