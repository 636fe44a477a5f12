"""A real Slurm with several nodes on one machine, to rehearse a multi-node job on a laptop.

Every node is a set of Linux namespaces (net, uts, mount, pid, ipc) with its own host name, address, `/tmp`,
`/dev/shm` and fake GPUs. A login node runs slurmctld and the network bridge. The rest of the file system is
shared, like the shared disk of a cluster. Nothing is written outside the testbed's folder, and killing one
process ends everything.

    python slurm/testbed.py up --site neuron      # then: PATH=/var/tmp/slurm-testbed-0/bin:$PATH sbatch ...
    bash engine/tests/slurm/make_root.sh ~/newer         # then: up --root ~/newer, with the Slurm of a newer Debian
    python slurm/testbed.py shell                 # a bash on the login node
    python slurm/testbed.py down
"""
