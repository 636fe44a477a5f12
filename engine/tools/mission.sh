#!/usr/bin/env bash
# Check the product's main promises on this commit, as root on Debian, in a clone below /var/tmp. Prints a line per check.
#
#     engine/tools/mission.sh            # all checks, about 15 minutes on 2 cores; exit code 1 if one failed
#     engine/tools/mission.sh elastic    # those whose name contains a word
set -u
project=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d /var/tmp/mission-XXXXXX)
chmod 755 "$work"
only=${1:-} failed=0

git clone -q "$project" "$work/project"
[ ! -e "$project/.venv" ] || ln -s "$(realpath "$project/.venv")" "$work/project/.venv"
cd "$work/project" || exit 1
testbed() { .venv/bin/python slurm/testbed.py "$1" --dir "$work/testbed" "${@:2}"; }
trap 'testbed down >/dev/null 2>&1; rm -rf "$work"' EXIT

check() { # NAME COMMAND...: print the last lines of a command that fails
  local name=$1 start=$SECONDS
  shift
  case "$name" in *"$only"*) ;; *) return ;; esac
  if timeout 1200 bash -c '"$@"' check "$@" >"$work/log" 2>&1 </dev/null; then
    echo "ok      $name, $((SECONDS - start)) s"
  else
    echo "FAILED  $name: $*" && tail -n 15 "$work/log" && failed=1
  fi
}
job() { # NAME KEY=VALUE...: train on the testbed, wait for the end, and read the state of the run
  check "$1" testbed run -- bash -c '.venv/bin/python src/train.py cluster=slurm wait=true trainer.max_epochs=2 "$@" &&
    grep -q "\"state\": \"completed\"" results/latest/run.json && grep -q "\"val/loss\"" results/latest/run.json' job "${@:2}"
}
dry_run() {
  .venv/bin/python src/train.py cluster=neuron trainer.nodes=4 cluster.comment='field=nlp;appl=pytorch' dry_run=true |
    tee /dev/stderr | grep -qE '^#SBATCH --nodes=4'
}
new_task() { make new-task NAME=x && make test ARGS='-k x'; }
own_project() {
  make project DIR="$work/own" NAME="Own project" FRAMEWORK="$1" &&
    (cd "$work/own" && make train ARGS=trainer.max_epochs=2 && make test) && rm -rf "$work/own"
}

export -f testbed dry_run new_task own_project
export work
check "make train" make train
check "make test" make test
check "four nodes of neuron, dry run" dry_run
check "make project, lightning" own_project lightning
check "make project, keras" own_project keras
check "make new-task" new_task
git clean -qfd && git checkout -q .
testbed up >/dev/null || { echo "FAILED  the testbed does not start"; exit 1; }
for framework in lightning keras; do
  job "horovod, $framework" framework=$framework strategy=horovod trainer.nodes=2
done
job "multiworker_mirrored on two nodes" framework=keras strategy=multiworker_mirrored trainer.nodes=2 launch=srun
job "fsdp" strategy=fsdp trainer.nodes=2
job "3 ranks on 2 nodes" trainer.nodes=2 trainer.total_devices=3 data.batch_size=96
job "elastic, 1 to 2 nodes" trainer.nodes=1-2
job "LoRA" framework=keras experiment=gpt_text 'model.lora={rank: 4, alpha: 8, targets: [query, value]}' trainer.max_epochs=1 trainer.limit_train_batches=20
exit $failed
