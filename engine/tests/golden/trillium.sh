#!/bin/bash --login
#SBATCH --job-name=digits
#SBATCH --output=/scratch/me/project/results/digits/20261120-101502-a1b2/slurm-%j.out
#SBATCH --error=/scratch/me/project/results/digits/20261120-101502-a1b2/slurm-%j.err
#SBATCH --open-mode=append
#SBATCH --account=def-pi
#SBATCH --nodes=1
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=24
#SBATCH --gpus-per-node=4
#SBATCH --no-requeue
#SBATCH --signal=B:USR1@120

set -euo pipefail

# ---- record signals from the start: bash handles one after the current command, or at once during `wait`
told= told_at=0 code= state=
keep_signals() {
    trap 'told=USR1 told_at=$EPOCHSECONDS' USR1
    trap 'told=TERM told_at=$EPOCHSECONDS' TERM
    trap 'told=Ctrl-C told_at=$EPOCHSECONDS' INT
}
keep_signals
# id of this job for Slurm's commands, which take the job id of an array's member for the whole array
export TRAIN_JOB="${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}"
TRAIN_JOB=${TRAIN_JOB:-$SLURM_JOB_ID}

# ---- unset variables of an earlier launcher or job in the submitting shell; variables that only tune them stay
for name in $(compgen -e); do
    case $name in
        OMPI_MCA_ess | OMPI_MCA_ess_base_* | OMPI_MCA_orte_ess_* | OMPI_MCA_orte_*_uri | OMPI_MCA_orte_*_dir | OMPI_MCA_orte_launch | OMPI_MCA_orte_app_num | OMPI_MCA_orte_num_nodes) unset "$name" ;;
        PMIX_MCA_* | PMIX_INSTALL_PREFIX | PRTE_MCA_* | PRTE_ALLOW_*) ;;
        RANK | WORLD_SIZE | LOCAL_RANK | LOCAL_WORLD_SIZE | NODE_RANK | GROUP_RANK | GROUP_WORLD_SIZE | ROLE_RANK | ROLE_WORLD_SIZE | ROLE_NAME) unset "$name" ;;
        MASTER_ADDR | TF_CONFIG | TORCHELASTIC_* | PET_NNODES | PET_NPROC_* | PET_NODE_RANK | PET_MASTER_* | PET_RDZV_* | PET_STANDALONE) unset "$name" ;;
        PET_LOCAL_ADDR | PET_MODULE | PET_NO_PYTHON | PET_RUN_PATH | OMPI_COMM_* | OMPI_UNIVERSE_SIZE | OMPI_APP_CTX_* | OMPI_NUM_APP_CTX) unset "$name" ;;
        OMPI_FIRST_RANKS | OMPI_ARGV | OMPI_COMMAND | OMPI_FILE_LOCATION | PMI_* | PMI2_* | PMIX_* | PRTE_* | HOROVOD_RANK | HOROVOD_SIZE) unset "$name" ;;
        HOROVOD_LOCAL_* | HOROVOD_CROSS_* | HOROVOD_HOSTNAME | HOROVOD_CONTROLLER | HOROVOD_ELASTIC | HOROVOD_GLOO_RENDEZVOUS_*) unset "$name" ;;
        HOROVOD_SECRET_KEY | _HOROVOD_* | TRAIN_HOSTS | TRAIN_NODE | TRAIN_STARTED | TRAIN_PYTHON | TRAIN_PACKED | TRAIN_PACKED_CODE) unset "$name" ;;
        SRUN_* | SBATCH_* | SLURM_EXPORT_ENV | SLURM_CPU_BIND* | SLURM_DIST* | SLURM_HOSTFILE) unset "$name" ;;
        SLURM_TRES_PER_TASK | SLURM_GPUS_PER_TASK | SLURM_CPUS_PER_GPU) unset "$name" ;;
        SLURM_GPUS) [ "${TRAIN_ALLOCATION:-}" = "$SLURM_JOB_ID" ] || unset "$name" ;;  # those of salloc belong to the allocation
    esac
done
sizes=(${!SLURM_MEM_PER_@})
[ -z "${sizes[1]:-}" ] || unset "${sizes[@]}"  # srun accepts only one of them; without any, a step has the memory of the job

# ---- the end of this script, whatever causes it. Exit code 75: stopped by a signal, the job resumes at its next start
note_end() { echo "$TRAIN_STARTED $EPOCHSECONDS" 2>/dev/null >>"$RUN/monitor/ended" || true; }
read_state() { state='' state_job=''; read -r state state_job 2>/dev/null <"$RUN/state" || true; }
# retry a Slurm command while there is time; the first argument is the command to suggest if that fails
persist() {
    local last=$((EPOCHSECONDS + 300))
    [ "$told_at" = 0 ] || last=$((told_at + 108))
    until "${@:2}"; do
        if [ "$EPOCHSECONDS" -ge "$last" ]; then
            echo "Slurm refused, or did not answer in time, and this job does not try again. Type: ${1:-python src/jobs.py resubmit $(printf %q "$RUN")}" >&2
            return 1
        fi
        sleep 5
    done
}
finish() {
    local ended=$?
    if [ -n "$told" ] && [ -z "$code" ] && [ "$ended" != 0 ]; then
        echo "Asked to stop ($told) before the ranks were started."
        code=75
        kill $(jobs -p) 2>/dev/null || true
    fi
    [ "$code" = 75 ] || exit "$ended"
    exit 75
}
trap finish EXIT

RUN=/scratch/me/project/results/digits/20261120-101502-a1b2
CODE=/scratch/me/project/results/digits/20261120-101502-a1b2/code  # the code as it was at submission
export TRAIN_STARTED=$EPOCHSECONDS  # the report counts the allocation's time from here until note_end
cd -- "$CODE"

# $RUN/state contains "<state> <job that trains>". RunDir.update (train_anywhere/runs/folder.py) writes it together with run.json.
# This script may replace two states, as RunDir.read_info expects: preempted by queued or failed, and running by failed.
read_state
if [ "$state" = completed ]; then
    echo "This run is complete: nothing to do."
    exit 0
fi
if [ "$state" = preempted ] || [ "$state $state_job" = "running $SLURM_JOB_ID" ]; then
    echo queued >"$RUN/state"  # the end of an earlier start does not count for this one
fi

# ---- environment
train_own=("$RUN" "$CODE")  # what is called below may have variables of the same names
set +u  # modules and conda read unset variables
module purge
module load StdEnv/2023
set -u
RUN=${train_own[0]} CODE=${train_own[1]} code=
export PYTHONPATH="$CODE${PYTHONPATH:+:$PYTHONPATH}"  # for python -m train_anywhere..., even with PYTHONSAFEPATH
export TRAIN_LOCAL_DISK="$SLURM_TMPDIR"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-24}"
[ -z "$told" ] || exit 75
starts=0 restarts=${SLURM_RESTART_COUNT:-0} given_port=${MASTER_PORT:-}

# ---- nodes of the ranks: TRAIN_HOSTS is node1:ranks,node2:ranks in the order of the ranks
TRAIN_HOSTS=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed 's/$/:4/' | paste -s -d ,)
MASTER_ADDR=${TRAIN_HOSTS%%:*}
[ -z "$told" ] || exit 75
# as job_port in train_anywhere/distributed/launcher_env.py: each start uses 16 other ports, because a port may stay in use
MASTER_PORT=$((10000 + 16 * ((SLURM_JOB_ID + 389 * starts + 617 * restarts) % 1250)))
listens() { (: <>"/dev/tcp/$1/$given_port") 2>/dev/null; }
if [ -n "$given_port" ] && [ "$starts$restarts" = 00 ]; then
    if [[ $given_port =~ ^[1-9][0-9]{3,4}$ ]] && [ "$given_port" -lt 65520 ] && ! listens "$MASTER_ADDR" && ! listens 127.0.0.1; then
        MASTER_PORT=$given_port
    else
        echo "MASTER_PORT=$given_port is taken on $MASTER_ADDR, or not a port from 1024 to 65519: the ranks meet at port $MASTER_PORT."
    fi
fi
export TRAIN_HOSTS MASTER_ADDR MASTER_PORT

read_state
before="$state $state_job"
# ---- the ranks: 4 on 1 node
srun --nodes=1 --ntasks=4 --ntasks-per-node=4 --cpus-per-task=24 --distribution=block --export=ALL --kill-on-bad-exit=1 \
    /home/me/.venv/bin/python -u "$CODE/src/train.py" --run "$RUN" &
launcher=$!

# ---- wait for the ranks, and forward signals to them
pass_on() {
    kill -USR1 "$launcher" 2>/dev/null || true
}
begun() { read_state; [ "$state $state_job" != "$before" ]; }  # rank 0 has recorded its start
tell_ranks() {
    woken=yes told=$1 told_at=$EPOCHSECONDS
    echo "Asked to stop ($1): telling the ranks to save a checkpoint."
    pass_on
    # a launcher that is still starting ranks may lose the signal: repeat it after 5 s, or kill ranks that had nothing to save yet
    { begun || { sleep 5; if begun; then pass_on; else kill "$launcher"; fi; } } >/dev/null 2>&1 &
}
trap 'tell_ranks USR1' USR1
trap 'tell_ranks TERM' TERM
trap 'tell_ranks Ctrl-C; trap "woken=yes; kill \$launcher || true" INT' INT

# ---- next to the ranks: a process on each node samples it (train_anywhere/monitor). It exits when its input is closed
errors=$RUN/monitor/errors.txt  # its errors, if it can't start
{ mkdir -p "$RUN/monitor" && : >"$errors"; } 2>/dev/null || errors=/dev/null
normal='^(srun: (Job step aborted: |Terminating |Force Terminated |forcing job termination|got SIGCONT|cluster configuration lacks )|srun: error: [^ ]+: tasks? [0-9,-]+: (Terminated|Exited with exit code 75)$|slurmstepd[^ ]*: error: [*]+ (STEP|JOB) [^ ]+ ON [^ ]+ CANCELLED AT [^ ]+( DUE (TO|to) (TIME LIMIT|PREEMPTION|JOB REQUEUE|SIGNAL Terminated))? [*]+)'
keep_errors() {  # what Slurm prints when any job is stopped is no error: without one, the file stays empty
    local kept='' line
    trap '' TERM INT USR1
    exec >"$errors" 2>/dev/null
    while IFS= read -r line || [ -n "$line" ]; do
        kept+=$line$'\n'
        [[ $line =~ $normal ]] || { printf %s "$kept"; exec cat; }
    done
}
exec {monitor}> >(unset SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK SLURM_TRES_PER_TASK; exec srun --overlap --whole --mem=0 --cpu-bind=none \
    --nodes=1 --ntasks=1 --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --export=ALL \
    /home/me/.venv/bin/python -m train_anywhere.monitor.node "$RUN" 2> >(keep_errors))

[ -z "$told" ] || tell_ranks "$told"  # a signal that came before the traps were set
woken=yes
while [ -n "$woken" ]; do
    woken=
    code=0
    wait "$launcher" || code=$?
done
keep_signals

# The job ends with the exit code of the training. 75 means: stopped by a signal, checkpoint saved. Launchers replace it by
# their own code for a failed rank, so the state that rank 0 has recorded counts.
ended=$code
read_state
if [ "$state" = preempted ]; then
    code=75
elif [ -n "$told" ] && [ "$code" != 0 ] && { [ "$code" -gt 128 ] || ! begun; }; then
    code=75  # the signal killed ranks that did not handle it yet
elif [ "$code" != 0 ] && [ "$state $state_job" = "running $SLURM_JOB_ID" ]; then
    echo failed >"$RUN/state" || true  # rank 0 of this job was killed before it could record its end
fi

hung=  # set if a watch stopped the ranks because they hung
# ranks that hung and were killed saved no checkpoint (monitor.hang=requeue, train_anywhere/features/hangs/kill_ranks.py)
if read -r hung 2>/dev/null <"$RUN/monitor/hang" && [ "$hung" != "$SLURM_JOB_ID/${SLURM_RESTART_COUNT:-0}" ]; then
    hung=  # the file is from an earlier start of the job
fi

# Publish complete checkpoints that killed ranks left on a node's disk.
if [ "$ended" != 0 ] && [ "$ended" != 75 ] && [ "$state" != preempted ] || [ -n "$hung" ]; then
    for host in "$MASTER_ADDR"; do
        for pause in 1 4 0; do
            srun --overlap --nodes=1 --ntasks=1 --mem=0 --export=ALL --nodelist="$host" \
                /home/me/.venv/bin/python -m train_anywhere.checkpoints.recovery "$RUN" "$ended" && break
            sleep "$pause"
        done
    done
fi
exec {monitor}>&-
note_end
exit "$code"
