"""The record of a run that user code ends before its last step."""


def describe_early_end(who: str | None, step: int, total: int) -> str:
    """Return the line for the terminal, run.json, status and report; `who` is the class of the callback, if it is known."""
    return f"{who or 'user code'} ended training after step {step} of {total}"
