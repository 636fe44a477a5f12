"""The options of sbatch and qsub: which the script sets, from which key, and which can't be given in `cluster.extra`."""

from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_name("options.txt")
"""For each option its letter for sbatch and for qsub, its kind, and the key to use instead, or why it can't be used.

line    the script has a line with the value of the key
part    the script has such a line, which its outline composes
own     the script sets it from other keys, or it could contradict one that the script sets
no      it submits no job, or one that src/jobs.py can't find
ask     its value decides
"""


class Option(NamedTuple):
    """A row of `TABLE`."""

    name: str
    letter: str
    qsub: str
    kind: str
    text: str = ""


OPTIONS = {row.split()[0]: Option(*row.split(maxsplit=4)) for row in TABLE.read_text().splitlines()}
SHORT = {o.letter: o.name for o in OPTIONS.values() if o.letter != "-"}
"""Long names of the short options: https://slurm.schedmd.com/sbatch.html"""

OWN_PBS = {o.qsub: o.text for o in OPTIONS.values() if o.qsub != "-"} | dict.fromkeys("IhzCS", "")
"""Options of qsub that the script sets itself or can't work with, and the key to use instead; "" if there is none."""
