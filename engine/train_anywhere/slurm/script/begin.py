"""`cluster.begin`: before when a job may not start, in the forms of sbatch's --begin that read the same anywhere.

https://slurm.schedmd.com/sbatch.html; PBS takes a date alone, as [[CC]YY]MMDDhhmm[.SS] (qsub -a).
"""

import re
from datetime import datetime

NAMES = ("midnight", "noon", "fika", "teatime", "today", "tomorrow")

_UNIT = "(second|minute|hour|day|week)s?"
_CLOCK = r"([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d)?"
_DATE = rf"\d{{4}}-\d\d-\d\d(T{_CLOCK})?"


def read(text: str) -> str:
    """The same text.

    Raises:
        ValueError: with a sentence for the user.
    """
    named = re.fullmatch(rf"now(\+\d{{1,8}}({_UNIT})?)?|{_CLOCK}|{'|'.join(NAMES)}", text, re.ASCII)
    if not named and _date(text) is None:
        raise ValueError(
            f"'{text}' is not a time to begin at; use a clock time (\"20:00\", in YAML with the quotes), tomorrow, now+2hours, "
            "or a date (2026-12-01, 2026-12-01T08:00)."
        )
    return text


def of_pbs(text: str) -> str:
    """A date as qsub takes it.

    Raises:
        ValueError: it is relative to the moment at which the scheduler reads it, with a sentence for the user.
    """
    when = _date(text)
    if when is None:
        raise ValueError(
            f"'{text}' is a form of Slurm's, and PBS takes a date; use cluster.begin=2026-12-01T08:00."
        )
    return f"{when:%Y%m%d%H%M.%S}"


def _date(text: str) -> datetime | None:
    if not re.fullmatch(_DATE, text, re.ASCII):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:  # the 31st of February, or an hour of one digit
        return None
