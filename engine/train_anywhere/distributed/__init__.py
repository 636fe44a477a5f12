"""Who am I among the ranks, and where are the others: found once, before any framework is imported.

In the order in which a rank uses it:

1. `launcher_env` reads the variables that launchers set; `hostlist` expands Slurm's lists of hosts.
2. `discover` identifies the launcher and makes a `topology.Topology`, which everything else gets as an argument.
3. `framework_env` and its like turn it into what Horovod and the frameworks read.
4. `network` finds addresses and an interface if names of nodes lead nowhere; `listening` chooses the address at which rank 0
   waits for the others.
5. `horovod_install` checks the installed Horovod, `horovod_init` starts it without MPI.

Before there are ranks: `devices` counts this machine's GPUs, and `layout` resolves strategy, devices and ranks of a run.
`programs` calls the scheduler's clients (squeue, sbatch).
"""
