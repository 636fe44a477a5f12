"""The supervisor of a run: it starts the ranks, watches them, decides about a restart or a requeue, and records how an attempt ends.

`python -I job/__main__.py` supervises a job, in its batch step; `launch/processes.py` supervises several ranks of this machine.

supervisor    the same decisions for both
batch_job     the ranks of a job: its nodes, its launcher, the requeue
restart       decides after a failure whether the ranks start again, and on which nodes
start.sh      what the batch script sources: signals, and the start of the supervisor
clean.sh      removes variables that an earlier launcher or job has left in the submitting shell
"""
