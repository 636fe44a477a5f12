#!/bin/bash
#PBS -N digits
#PBS -o /scratch/me/project/results/digits/20261120-101502-a1b2/pbs.out
#PBS -e /scratch/me/project/results/digits/20261120-101502-a1b2/pbs.err
#PBS -l select=2:ncpus=8:mpiprocs=2:ngpus=2
#PBS -r y

set -euo pipefail

RUN=/scratch/me/project/results/digits/20261120-101502-a1b2
CODE=/scratch/me/project/results/digits/20261120-101502-a1b2/code  # as it was at submission
exec >>"$RUN/pbs-${PBS_JOBID%%.*}.out" 2>>"$RUN/pbs-${PBS_JOBID%%.*}.err"  # PBS itself shows them only at the end
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
TRAIN_HOSTS=$(awk '!seen[$1]++ { print $1 ":2" }' "$PBS_NODEFILE" | paste -s -d ,)
MASTER_ADDR=${TRAIN_HOSTS%%:*}
number=${PBS_JOBID%%[!0-9]*}
MASTER_PORT=$((10000 + number % 1250 * 16))  # a job has 16 ports: another one may run on its nodes
export TRAIN_HOSTS MASTER_ADDR MASTER_PORT

# ---- the ranks: 4 on 2 nodes
if [ "$(id -u)" = 0 ]; then  # only on a test machine; mpirun wants to hear it twice
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
mpirun -np 4 -H "$TRAIN_HOSTS" --bind-to none --map-by slot -mca pml ob1 -mca btl ^openib \
    -x PATH ${LD_LIBRARY_PATH+-x LD_LIBRARY_PATH} -x OMP_NUM_THREADS -x TRAIN_LOCAL_DISK \
    -x TRAIN_HOSTS -x TRAIN_STARTED -x MASTER_ADDR -x MASTER_PORT \
    /home/me/.venv/bin/python -u "$CODE/src/train.py" --run "$RUN" &
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
exec {monitor}> >(exec /home/me/.venv/bin/python -m src.monitor.node "$RUN" 2>/dev/null)

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
elif [ "$code" != 0 ] && [ "$state $state_job" = "running $PBS_JOBID" ]; then
    echo failed >"$RUN/state" || true  # rank 0 of this job was killed before it could record its end
fi

hung=  # ranks that hung, and were killed by the watch, saved nothing (monitor.hang=requeue, src/monitor/ending.py)
if read -r hung 2>/dev/null <"$RUN/monitor/hang" && [ "$hung" != "$PBS_JOBID/0" ]; then
    hung=  # at an earlier start
fi

# What ended ranks left complete on a node's disk is published before the job ends.
if [ "$code" != 0 ] && [ "$code" != 75 ] || [ -n "$hung" ]; then
    /home/me/.venv/bin/python -m src.checkpoints.recovery "$RUN" || true
fi
exec {monitor}>&-
echo "$TRAIN_STARTED $EPOCHSECONDS" 2>/dev/null >>"$RUN/monitor/ended" || true  # the report counts the allocation's time to here
exit "$code"
