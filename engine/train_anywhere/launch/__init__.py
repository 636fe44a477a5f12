"""Start a run on this machine, and each rank of any run.

command        the command line of `src/train.py`, and its exit code
local_run      a run on this machine, or a sweep: checks the configuration, makes or reopens the run folder, trains
processes      starts and watches the ranks and the monitor process of the node; `forkserver` starts them as forks, without import time
warm_node      forks the ranks of a node in a job; `warm_rank` is the task of srun that stands for one
rank           the entry point of one rank, which every launcher starts; `failure` and `exits` handle its end
launcher       runs torchrun or horovodrun in a job
"""
