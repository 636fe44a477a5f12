#!/bin/sh
# Run by Slurm before every task and batch script; what it prints as `export NAME=value` is set in their environment.
if [ "$(id -u)" = 0 ]; then # here root is a user like any other; Open MPI asks for both
  echo "export OMPI_ALLOW_RUN_AS_ROOT=1"
  echo "export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
fi
# Sites with a PBS server (sites.py: pbs=True). The other PBS_* variables come from Slurm's plugin spank_pbs.
if [ -e /etc/slurm/pbs ]; then echo "export PBS_NODEFILE=$(generate_pbs_nodefile)"; fi
