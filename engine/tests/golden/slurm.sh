#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --output=/scratch/me/project/results/digits/20261120-101502-a1b2/slurm-%j.out
#SBATCH --error=/scratch/me/project/results/digits/20261120-101502-a1b2/slurm-%j.err
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-node=1
#SBATCH --requeue
#SBATCH --signal=B:USR1@120

set -euo pipefail
RUN=/scratch/me/project/results/digits/20261120-101502-a1b2
CODE=/scratch/me/project/results/digits/20261120-101502-a1b2/code  # the code as it was at submission
# signals wait from here on until the supervisor reads them
source "$CODE/train_anywhere/job/start.sh" slurm /home/me/.venv/bin/python --requeue --signal-seconds=120
[ "${TRAIN_ALLOCATION:-}" = "$SLURM_JOB_ID" ] || unset SLURM_GPUS  # of the submitting shell; those of salloc belong to the allocation

# ---- environment
export PYTHONPATH="$CODE${PYTHONPATH:+:$PYTHONPATH}"  # for python -m train_anywhere..., even with PYTHONSAFEPATH
export TRAIN_LOCAL_DISK="/tmp"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"

# ---- the ranks: 1 on 1 node. The supervisor starts the command, watches it, and decides what follows
supervise --monitor --python=/home/me/.venv/bin/python -- \
    srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=4 --distribution=block --export=ALL --kill-on-bad-exit=1 \
    /home/me/.venv/bin/python -u "$CODE/src/train.py" --run "$RUN"
