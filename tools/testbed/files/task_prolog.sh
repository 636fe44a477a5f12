#!/bin/sh
# Slurm runs this before every task and batch script, and sets the variables that it prints as `export NAME=value`.
if [ "$(id -u)" = 0 ]; then # users of the testbed may be root; Open MPI needs both variables for that
  echo "export OMPI_ALLOW_RUN_AS_ROOT=1"
  echo "export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
fi
# Sites with a PBS server (sites.py: pbs=True). The other PBS_* variables come from Slurm's plugin spank_pbs.
if [ -e /etc/slurm/pbs ]; then echo "export PBS_NODEFILE=$(generate_pbs_nodefile)"; fi
