"""Times and sizes as Slurm writes them."""

import math
import re

UNQUOTED = 60 * 60
"""A number of minutes from here on is taken for an unquoted H:MM:SS, because YAML 1.1 reads 24:00:00 as 86400."""

_FORMS = (
    r"(?P<minutes>\d{1,8})",
    r"(?P<minutes>\d{1,8}):(?P<seconds>\d{1,8})",
    r"(?P<hours>\d{1,8}):(?P<minutes>\d{1,8}):(?P<seconds>\d{1,8})",
    r"(?P<days>\d{1,4})-(?P<hours>\d{1,8})(:(?P<minutes>\d{1,8})(:(?P<seconds>\d{1,8}))?)?",
)
"""https://slurm.schedmd.com/sbatch.html, --time"""

_SIZES = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}


def seconds(time: int | str) -> int:
    """Seconds of a time limit: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S.

    Raises:
        ValueError: with a sentence for the user.
    """
    if isinstance(time, int) and time >= UNQUOTED:
        hours, minutes = divmod(time // 60, 60)
        raise ValueError(
            f"{time} is a number, and sbatch reads a number as minutes; YAML reads it from an unquoted "
            f'{hours}:{minutes:02}:{time % 60:02}: write it with quotes, "{hours}:{minutes:02}:{time % 60:02}".'
        )
    for form in _FORMS:
        if match := re.fullmatch(form, str(time), re.ASCII):
            part = {k: int(v or 0) for k, v in match.groupdict().items()}
            days, hours = part.get("days", 0), part.get("hours", 0)
            return ((days * 24 + hours) * 60 + part.get("minutes", 0)) * 60 + part.get("seconds", 0)
    raise ValueError(
        f"'{time}' is not a time limit; use minutes (90), hours (\"24:00:00\") or days (1-12:00:00)."
    )


def clock(time: int) -> str:
    """Seconds as H:MM:SS, which Slurm and PBS both read."""
    return f"{time // 3600}:{time // 60 % 60:02}:{time % 60:02}"


def megabytes(size: str) -> int:
    """MiB of a size such as 180G, 512000M, 1T or (as Slurm reads a plain number) 4096.

    Raises:
        ValueError: with a sentence for the user.
    """
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,12})?)([KMGT]?)B?", size.strip(), re.IGNORECASE | re.ASCII)
    if not match:
        raise ValueError(f"'{size}' is not an amount of memory; use a form like 180G.")
    mebibytes = float(match[1]) * _SIZES[match[2].upper() or "M"]
    return math.ceil(mebibytes)  # not rounded to 0, which means all of the memory


def short_size(mib: int) -> str:
    """MiB in the largest unit that stays whole: 393216 is 384G, 1000 is 1000M; 0, all of a node, has none."""
    if mib == 0:
        return "0"
    return f"{mib // 1024}G" if mib % 1024 == 0 else f"{mib}M"
