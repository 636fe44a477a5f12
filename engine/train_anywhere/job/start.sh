# Sourced by the batch script of a training: source "$CODE/train_anywhere/job/start.sh" (slurm | pbs) PYTHON OPTIONS
# From here on signals are written to a pipe, which the supervisor reads: one that comes while the environment is set up is not lost.
source "$CODE/train_anywhere/job/clean.sh" "$1"
export TRAIN_STARTED=$EPOCHSECONDS  # the report counts the allocation's time from here
train_job=("$RUN" "$CODE" "$2") train_options=("--scheduler=$1" "${@:3}")  # a profile or cluster.setup may have variables of the same names
exec {train_signals}<> <(:) {train_answers}<> <(:)
for name in USR1 TERM INT; do trap "echo $name >&$train_signals" "$name"; done
cd -- "$CODE"

# supervise OPTIONS -- COMMAND: start the supervisor (train_anywhere/job/__main__.py), wait for it, and end this script as it says
supervise() {
    local pid code=0 began='' ranks='' end='' word value
    # it ignores the signals, which it reads from the pipe. The words are its input: `pkill -f train.py` must find the ranks alone
    (trap '' USR1 TERM INT; exec "${train_job[2]}" -I "${train_job[1]}/train_anywhere/job/__main__.py" "${train_job[0]}" "$train_signals" "$train_answers") \
        < <(printf '%s\0' "${train_options[@]}" "$@") &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do wait "$pid" || code=$?; done
    while read -t 0 -u "$train_answers" && read -r -u "$train_answers" word value; do printf -v "$word" %s "$value"; done
    trap - EXIT
    [ -z "$end" ] || exit "$end"
    if [ -z "$began" ]; then
        [ -z "${train_ranks:-}" ] || kill -TERM -- "-$train_ranks" 2>/dev/null || true
        echo "error: ${train_job[2]} does not start on $HOSTNAME (exit code $code), so nothing was trained: the Python that submits a job must be on a disk that all nodes share." >&2
        exit 1
    fi
    # it was killed, and the ranks must not train without it: see train_anywhere/job/requeue.py
    [ "$1" != --died ] || exit 1
    train_ranks=$ranks
    supervise --died "$code" --launcher "${ranks:-0}" "$@"
}
leave() {
    local ended=$?
    [ "$ended" = 0 ] || ! read -t 0 -u "$train_signals" || supervise --not-started
    exit "$ended"
}
trap leave EXIT
