"""Start a run on this machine, and each rank of any run.

command        the command line of `src/train.py`, and its exit code
local_run      checks the configuration, makes or reopens the run folder; `local_sweep` does so for each member
preflight      whether data, model and checkpoints can be used, by what is cheap to learn
processes      starts and watches the ranks, and the side process next to them; `forkserver` starts them without imports
rank           what every launcher starts: one rank; `failure` and `leaving` are its end
launcher       runs another launcher in a job
"""
