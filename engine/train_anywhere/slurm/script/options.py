"""The options of sbatch and qsub: which the script sets, from which key, and which can't be given in `cluster.extra`."""

from typing import NamedTuple

TABLE = """
account            A  A  line  cluster.account
partition          p  q  line  cluster.partition
qos                q  -  line  cluster.qos
reservation        -  -  line  cluster.reservation
constraint         C  -  line  cluster.constraint
exclude            x  -  line  cluster.exclude
nodelist           w  -  line  cluster.nodelist
exclusive          -  -  line  cluster.exclusive
begin              b  a  line  cluster.begin
nice               -  p  line  cluster.nice
comment            -  -  line  cluster.comment
mail-user          -  M  line  cluster.mail_user
mail-type          -  m  line  cluster.mail_type
time-min           -  -  part  cluster.time_min
gres               -  -  part  cluster.gres
job-name           J  N  own   name
time               t  -  own   cluster.time
nodes              N  -  own   trainer.nodes
array              a  J  own   -m
gpus               G  -  own   trainer.total_devices
gpus-per-node      -  -  own   trainer.devices
gpus-per-socket    -  -  own   trainer.devices
ntasks             n  -  own   trainer.devices
ntasks-per-node    -  -  own   trainer.devices
ntasks-per-gpu     -  -  own   trainer.devices
ntasks-per-socket  -  -  own   trainer.devices
ntasks-per-core    -  -  own   trainer.devices
tasks-per-node     -  -  own   trainer.devices
cpus-per-task      c  -  own   cluster.cpus_per_task
cpus-per-gpu       -  -  own   cluster.cpus_per_task
mem                -  -  own   cluster.mem
mem-per-gpu        -  -  own   cluster.mem_per_gpu
mem-per-cpu        -  -  own   cluster.mem_per_cpu
signal             -  -  own   cluster.signal_seconds
requeue            -  r  own   cluster.requeue=true
no-requeue         -  -  own   cluster.requeue=false
output             o  o  own
error              e  e  own
open-mode          -  -  own
wrap               -  -  no    replaces the script
parsable           -  -  no    changes the answer that contains the job id
test-only          -  -  no    submits nothing; use dry_run=test
wait               W  -  no    makes sbatch wait; use wait=true
uid                -  -  no    submits as another user
gid                -  -  no    submits as another group
export-file        -  -  no    drops the login environment
help               h  -  no    submits nothing
usage              -  -  no    submits nothing
version            V  -  no    submits nothing
gpus-per-task      -  -  no    hides a node's other GPUs from a rank (no NVLink between ranks)
tres-per-task      -  -  no    hides a node's other GPUs from a rank (no NVLink between ranks)
clusters           M  -  ask
export             -  -  ask
"""
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


OPTIONS = {row.split()[0]: Option(*row.split(maxsplit=4)) for row in TABLE.strip().splitlines()}
SHORT = {o.letter: o.name for o in OPTIONS.values() if o.letter != "-"}
"""Long names of the short options: https://slurm.schedmd.com/sbatch.html"""

OWN_PBS = {o.qsub: o.text for o in OPTIONS.values() if o.qsub != "-"} | dict.fromkeys("IhzCS", "")
"""Options of qsub that the script sets itself or can't work with, and the key to use instead; "" if there is none."""
