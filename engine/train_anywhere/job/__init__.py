"""The supervisor of a run.

It starts the ranks, watches them, decides about a restart or a requeue, and records how an attempt ends.

`python -I job/__main__.py` supervises a job, in its batch step; `launch/processes.py` supervises several ranks of this machine.

supervisor       the same decisions for both; signals: those that it gets
restart          decides after a failure whether the ranks start again, and on which nodes
batch_job        a job: its nodes, its launcher, commands next to it
requeue          the requests of a job to Slurm's queue, and the end of a job whose supervisor was killed
running_ranks    its launcher while it runs, job steps next to it, and the rank that was killed first
packed_members   several members of a sweep in one job, each with a supervisor of its own
rank_process     what a rank's process has besides the configuration, and its signals
start.sh         what the batch script sources: signals, and the start of the supervisor
clean.sh         removes variables that an earlier launcher or job has left in the submitting shell
"""
