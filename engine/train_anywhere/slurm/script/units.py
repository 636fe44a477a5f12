"""Parse and format times and sizes in Slurm's notation."""

import math
import re

UNQUOTED = 60 * 60
"""From this number of minutes, a number is taken for an unquoted H:MM:SS, because YAML 1.1 reads 24:00:00 as 86400."""

_FORMS = (
    r"(?P<minutes>\d{1,8})",
    r"(?P<minutes>\d{1,8}):(?P<seconds>\d{1,8})",
    r"(?P<hours>\d{1,8}):(?P<minutes>\d{1,8}):(?P<seconds>\d{1,8})",
    r"(?P<days>\d{1,4})-(?P<hours>\d{1,8})(:(?P<minutes>\d{1,8})(:(?P<seconds>\d{1,8}))?)?",
)
"""Forms of a time limit: https://slurm.schedmd.com/sbatch.html, --time"""

_SIZES = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}


def seconds(time: int | str) -> int:
    """Return the seconds of a time limit: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S.

    Raises:
        ValueError: the form is not known; the message is for the user.
    """
    if isinstance(time, int) and time >= UNQUOTED:
        raise ValueError(
            f"{time} is a number, and sbatch reads a number as minutes; YAML reads an unquoted {clock(time)} "
            f'as this number: write it with quotes, "{clock(time)}"; for {time} minutes write "{clock(time * 60)}".'
        )
    for form in _FORMS:
        if match := re.fullmatch(form, str(time), re.ASCII):
            part = {k: int(v or 0) for k, v in match.groupdict().items()}
            days, hours = part.get("days", 0), part.get("hours", 0)
            return ((days * 24 + hours) * 60 + part.get("minutes", 0)) * 60 + part.get("seconds", 0)
    if str(time).upper() in ("UNLIMITED", "INFINITE"):
        raise ValueError(
            f"'{time}' is not a time limit; for no limit use cluster.time=0, and leave out other limits."
        )
    raise ValueError(
        f"'{time}' is not a time limit; use minutes (90), hours (\"24:00:00\") or days (1-12:00:00)."
    )


def clock(time: int) -> str:
    """Format seconds as H:MM:SS, which both Slurm and PBS read."""
    return f"{time // 3600}:{time // 60 % 60:02}:{time % 60:02}"


def megabytes(size: str) -> int:
    """Return the MiB of a size such as 180G, 512000M or 1T; a plain number such as 4096 is in MiB, as for Slurm.

    Raises:
        ValueError: the form is not known; the message is for the user.
    """
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,12})?)([KMGT]?)B?", size.strip(), re.IGNORECASE | re.ASCII)
    if not match:
        raise ValueError(f"'{size}' is not an amount of memory; use a form like 180G.")
    mebibytes = float(match[1]) * _SIZES[match[2].upper() or "M"]
    return math.ceil(mebibytes)  # rounded up: 0 would mean all of the memory


def short_size(mib: int) -> str:
    """Format MiB in the largest unit that gives a whole number: 384G for 393216, 1000M for 1000; 0 (all memory) has no unit."""
    if mib == 0:
        return "0"
    return f"{mib // 1024}G" if mib % 1024 == 0 else f"{mib}M"
