#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --output=/scratch/me/project/results/digits/20261120-101502-a1b2/slurm-%j.out
#SBATCH --error=/scratch/me/project/results/digits/20261120-101502-a1b2/slurm-%j.err
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks=3
#SBATCH --cpus-per-task=4
#SBATCH --gpus=a100:3
#SBATCH --requeue
#SBATCH --signal=B:USR1@120

set -euo pipefail

RUN=/scratch/me/project/results/digits/20261120-101502-a1b2
CODE=/scratch/me/project/results/digits/20261120-101502-a1b2/code  # as it was at submission
export TRAIN_STARTED=$EPOCHSECONDS  # the report counts the allocation's time from here
cd -- "$CODE"

# $RUN/state is "<state> <job that trains>", written by RunDir.update (src/runs/folder.py) together with run.json. Of the words
# written here RunDir.info accepts two: queued instead of preempted, and failed instead of running.
read_state() { state='' state_job=''; read -r state state_job 2>/dev/null <"$RUN/state" || true; }
read_state
if [ "$state" = completed ]; then
    echo "This run is complete: nothing to do."
    exit 0
fi
if [ "$state" = preempted ]; then  # the stop of an earlier start is not one of this start
    echo queued >"$RUN/state"
fi

# ---- environment
export TRAIN_LOCAL_DISK="/tmp"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"

# ---- who takes part: TRAIN_HOSTS is node1:ranks,node2:ranks in the order of the ranks
# Slurm decides which node gets how many of the 3 ranks, so ask Slurm
TRAIN_HOSTS=$(srun --nodes=2 --ntasks=3 --cpus-per-task=4 \
    bash -c 'echo "$SLURM_PROCID $SLURMD_NODENAME"' | sort -n | cut -d ' ' -f 2 | uniq -c |
    awk '{ print $2 ":" $1 }' | paste -s -d ,)
MASTER_ADDR=${TRAIN_HOSTS%%:*}
MASTER_PORT=$((10000 + SLURM_JOB_ID % 1250 * 16))  # a job has 16 ports: another one may run on its nodes
export TRAIN_HOSTS MASTER_ADDR MASTER_PORT

# ---- the ranks: 3 on 2 nodes
# one torchrun per node, with all CPUs of the job there; each looks up in TRAIN_HOSTS how many ranks are its own.
# It ends when its ranks have: USR1 and TERM are meant for them, and it ignores both. If it ended with an error at TERM, Slurm would
# soon kill the ranks of the other nodes. PET_SIGNALS_TO_HANDLE is its option --signals-to-handle.
unset SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK
srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --whole --export=ALL --kill-on-bad-exit=1 \
    bash -c 'trap "" USR1 TERM; here=",$TRAIN_HOSTS,"; here=${here#*,"$SLURMD_NODENAME":}
        PET_SIGNALS_TO_HANDLE=SIGINT,SIGHUP,SIGQUIT exec "$0" -m src.launch.launcher "$1" torch.distributed.run --nproc-per-node="${here%%,*}" "${@:2}"' \
    /home/me/.venv/bin/python "$RUN" --nnodes=2 \
    --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \
    -- "$CODE/src/train.py" --run "$RUN" &
launcher=$!

# ---- wait for them; a signal is forwarded, and the waiting continues
tell_ranks() {
    woken=yes
    echo "Asked to stop ($1): telling the ranks to save a checkpoint."
    kill -USR1 "$launcher" 2>/dev/null || true
}
trap 'tell_ranks USR1' USR1
trap 'tell_ranks TERM' TERM
trap 'tell_ranks Ctrl-C; trap "woken=yes; kill \$launcher || true" INT' INT

# ---- beside the ranks: one process on each node samples what it does (src/monitor). It ends when its input is closed
# --overlap and --mem=0 share the CPUs, GPUs and memory of the ranks (man srun); unset is what would give it a part of them
exec {monitor}> >(unset SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK SLURM_TRES_PER_TASK; exec srun --overlap --whole --mem=0 --cpu-bind=none \
    --nodes=2 --ntasks=2 --ntasks-per-node=1 --gpus=3 --kill-on-bad-exit=0 --wait=0 --export=ALL \
    /home/me/.venv/bin/python -m src.monitor.node "$RUN" 2>/dev/null)

woken=yes
while [ -n "$woken" ]; do
    woken=
    code=0
    wait "$launcher" || code=$?
done
trap '' USR1 TERM

# The trainer's exit code is the job's. 75 means: stopped by a signal, checkpoint saved; launchers turn it into their own
# code for a failed rank, so the state that rank 0 recorded counts.
read_state
if [ "$state" = preempted ]; then
    code=75
elif [ "$code" != 0 ] && [ "$state $state_job" = "running $SLURM_JOB_ID" ]; then
    echo failed >"$RUN/state" || true  # rank 0 of this job was killed before it could record its end
fi

hung=  # ranks that hung, and were killed by the watch, saved nothing (monitor.hang=requeue, src/monitor/ending.py)
if read -r hung 2>/dev/null <"$RUN/monitor/hang" && [ "$hung" != "$SLURM_JOB_ID/${SLURM_RESTART_COUNT:-0}" ]; then
    hung=  # at an earlier start
fi

# What ended ranks left complete on a node's disk is published before the job ends.
if [ "$code" != 0 ] && [ "$code" != 75 ] || [ -n "$hung" ]; then
    for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
        srun --overlap --nodes=1 --ntasks=1 --mem=0 --gres=none --nodelist="$host" \
            /home/me/.venv/bin/python -m src.checkpoints.recovery "$RUN" || true
    done
fi
exec {monitor}>&-
echo "$TRAIN_STARTED $EPOCHSECONDS" 2>/dev/null >>"$RUN/monitor/ended" || true  # the report counts the allocation's time to here
# A job that is being cancelled is not RUNNING any more; one that runs by hand (salloc) has no place in the queue.
if [ "$code" = 75 ] && [ "${ENVIRONMENT:-}" = BATCH ] &&
    [[ "$(scontrol show job "$SLURM_JOB_ID")" == *JobState=RUNNING* ]]; then
    echo "Stopped with a checkpoint saved: back to the queue."
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
