"""Check `cluster.begin`, the earliest start of a job, in the forms of sbatch's --begin that do not depend on the locale.

https://slurm.schedmd.com/sbatch.html; PBS takes only a date, as [[CC]YY]MMDDhhmm[.SS] (qsub -a).
"""

import re
from datetime import datetime

NAMES = ("midnight", "noon", "fika", "teatime", "today", "tomorrow")

_UNIT = "(second|minute|hour|day|week)s?"
_CLOCK = r"([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d)?"
_DATE = rf"\d{{4}}-\d\d-\d\d(T{_CLOCK})?"


def check(text: str) -> str:
    """Return the start time unchanged.

    Raises:
        ValueError: its form is not known; the message is for the user.
    """
    named = re.fullmatch(rf"now(\+\d{{1,8}}({_UNIT})?)?|{_CLOCK}|{'|'.join(NAMES)}", text, re.ASCII)
    if not named and _date(text) is None:
        raise ValueError(
            f"'{text}' is not a start time; use a clock time (\"20:00\", in YAML with the quotes), tomorrow, now+2hours, "
            "or a date (2026-12-01, 2026-12-01T08:00)."
        )
    return text


def to_qsub(text: str) -> str:
    """Return a date in the form of `qsub -a`.

    Raises:
        ValueError: the start time is relative, which only Slurm understands; the message is for the user.
    """
    when = _date(text)
    if when is None:
        raise ValueError(
            f"'{text}' is understood only by Slurm, and PBS takes a date; use cluster.begin=2026-12-01T08:00."
        )
    return f"{when:%Y%m%d%H%M.%S}"


def _date(text: str) -> datetime | None:
    if not re.fullmatch(_DATE, text, re.ASCII):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:  # a day that does not exist, or an hour of one digit
        return None
