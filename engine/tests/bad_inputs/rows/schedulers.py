"""Schedulers that are missing, fail, hang or print bytes, odd jobs, other environments."""

from engine.tests.bad_inputs.row import (
    Damage,
    Row,
    fifo,
    folder,
    gone,
    link,
    read_only,
    unreadable,
    with_mode,
)

FAILS = 'echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1'
QUEUED = "echo '4001|RUNNING'"
HANGS = "exec sleep 1000"
KEPT = r"row/(results|home/\.local).*"
"""What stays where a job may have been submitted: its run folder, and the record that its user trusts it."""

PUT_BACK = (
    r"row/results/digits/20260102-000000-bbbb/(config\.yaml|overrides\.txt|run\.json|job\.sbatch|jobs\.txt)"
)
"""Files of a run that had to be renewed before the scheduler was asked, and hold again what they held."""

OWN_RUNS = r"row/home/\.local(/state(/train-anywhere(/trusted)?)?)?"
"""The list of runs that this user made, written before the scheduler is asked, so that a kill loses none; a refused one is only a line in it."""

SUBMITS: dict[str, tuple[str, str]] = {
    "refuses": ('echo "sbatch: error: invalid account" >&2; exit 1', "sbatch refused the job: .*invalid account"),
    "fails without a word": ("exit 1", "sbatch failed with exit code 1"),
    "is killed": ("kill -9 $$", "sbatch"),
    "prints no job id": ("echo hello", "sbatch answered 'hello', which has no job id"),
    "prints nothing": (":", "sbatch answered '', which has no job id"),
    "prints bytes": (r"printf '\377\376\n'", "sbatch answered"),
    "refuses in bytes": (r"printf '\377\376 no\n' >&2; exit 1", "sbatch refused the job"),
    "prints a superscript": ("echo ²", "sbatch answered"),
    "hangs": (HANGS, "sbatch.*(second|minute|answer)"),
    "prints without an end": ("exec yes", "sbatch"),
}  # fmt: skip
PROGRAMS = ("squeue", "sacct", "scontrol")
ENVIRONS: list[tuple[str, dict[str, str], str]] = [
    ("cluster=slurm", {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "abc"}, "SLURM_JOB_NUM_NODES='abc' does not have the scheduler's format.*unset SLURM_JOB_NUM_NODES"),
    ("cluster=slurm", {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "²"}, r"SLURM_JOB_NUM_NODES='\\xb2' does not have the scheduler's format"),
    ("cluster=slurm", {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "x"}, "SLURM_STEP_NUM_TASKS='x' does not have the scheduler's format"),
    ("cluster=slurm", {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "many"}, "SLURM_JOB_CPUS_PER_NODE='many' does not have the scheduler's format"),
    ("cluster=slurm", {"SLURM_JOB_ID": "7", "SLURM_GPUS_PER_NODE": "a100:x"}, "SLURM_GPUS_PER_NODE='a100:x' does not have the scheduler's format"),
    ("cluster=slurm", {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": ""}, ""),
    ("cluster=slurm trainer.nodes=2", {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}, r"trainer\.nodes=2, but this allocation \(7\) has 1; use trainer\.nodes=1"),
    ("cluster=slurm", {"SLURM_JOB_ID": "7", "ENVIRONMENT": "BATCH"}, "this is inside job 7, and a job can't submit another"),
    ("cluster=slurm", {"SLURM_JOB_ID": "7", "TRAIN_HOSTS": "a:1"}, "this is inside job 7"),
    ("-m cluster=slurm seed=1,2", {"SLURM_JOB_ID": "7"}, "a sweep is a job array, which can't run inside an allocation"),
    ("cluster=slurm trainer.devices=4", {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "2"}, "do not fit this allocation.*salloc --cpus-per-task"),
    ("cluster=pbs", {"PBS_JOBID": "7.a", "PBS_ENVIRONMENT": "PBS_BATCH"}, "this is inside job 7.a"),
    ("", {"RANK": "²", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, "RANK=² is not a whole number"),
    ("", {"RANK": "-1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, "RANK=-1 is not a whole number"),
    ("", {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "this process was started as rank 0 of 2"),
    ("", {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "this process was started as rank 0 of 2 by local"),
    ("", {"RANK": "0", "WORLD_SIZE": "2"}, "RANK=0 and WORLD_SIZE=2 are set without LOCAL_RANK"),
    ("", {"PMI_SIZE": "2", "PMI_RANK": "0"}, "an MPI other than Open MPI"),
    ("", {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "mpirun"),
    ("", {"SLURM_PROCID": "0", "SLURM_STEP_ID": "x"}, "SLURM_STEP_ID=x is not a whole number"),
    ("", {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2(x2)"}, r"SLURM_STEP_NUM_TASKS=2\(x2\) is not a whole number"),
    ("", {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, "SLURM_STEP_NUM_TASKS is not set"),
    ("", {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}, "this process was started as rank 0 of 2 by srun"),
    ("", {"HOROVOD_RANK": "a", "HOROVOD_SIZE": "2"}, "HOROVOD_RANK=a is not a whole number"),
    ("paths.results='${oc.env:NOWHERE}'", {}, "NOWHERE"),
    ("paths.results=~/results", {"HOME": ""}, "HOME|paths.results|~"),
    ("trainer.accelerator=gpu", {"CUDA_VISIBLE_DEVICES": "zero,²"}, "GPU"),
]  # fmt: skip
JOBS = {
    "": "usage|VERB",
    "stat": "invalid choice: 'stat'",
    "status": "there is no run in .*/results yet",
    "status --results": "--results",
    "status --results {row}/none": "there is no run in .*/none yet",
    "status --results {row}/a-file": "a-file|no run is called",
    "status nothere --results {row}/results": "no run is called 'nothere' below",
    "status 99 --results {row}/results": "no run is called '99'",
    "status ² --results {row}/results": "no run is called '²'",
    "status '*' --results {row}/results": r"no run is called '\*'",
    "status '../..' --results {row}/results": "no run is called",
    "status 'a\nb' --results {row}/results": "no run is called",
    "logs {run}": "ran on this machine: what it printed went to its terminal, and no log was written",
    "cancel {run}": "ran on this machine and is failed: there is nothing to cancel",
    "resubmit {run}": "ran on this machine; resume it with `.*resume=",
    "resubmit {job} --fail-ed": "unrecognized arguments",
    "status " + "x" * 300: "no run is called",
    "list --results {row}/" + "x" * 300: "too long",
}
RUNS: dict[str, tuple[str, dict[str, Damage], str]] = {
    "run.json is empty": ("status {job}", {"{job}/run.json": ""}, r"run\.json"),
    "run.json is cut off": ("status {job}", {"{job}/run.json": '{"state"'}, r"run\.json"),
    "run.json is a list": ("status {job}", {"{job}/run.json": "[1]"}, r"run\.json"),
    "run.json is no UTF-8": ("status {job}", {"{job}/run.json": b"\xff"}, r"run\.json"),
    "run.json is a folder": ("status {job}", {"{job}/run.json": folder}, r"run\.json"),
    "run.json is a FIFO": ("status {job}", {"{job}/run.json": fifo}, r"run\.json"),
    "run.json can't be read": ("status {job}", {"{job}/run.json": unreadable}, r"run\.json"),
    "jobs.txt is no UTF-8": ("status {job}", {"{job}/jobs.txt": b"\xff\n"}, r"jobs\.txt"),
    "jobs.txt is a folder": ("cancel {job}", {"{job}/jobs.txt": folder}, r"jobs\.txt"),
    "jobs.txt names no jobs": ("cancel {job}", {"{job}/jobs.txt": "--all\n-u ada\n"}, r"jobs\.txt"),
    "jobs.txt can't be read": ("status {job}", {"{job}/jobs.txt": unreadable}, r"jobs\.txt"),
    "jobs.txt is a FIFO": ("status {job}", {"{job}/jobs.txt": fifo}, r"jobs\.txt"),
    "the script is gone": ("resubmit {job}", {"{job}/job.sbatch": gone}, "no longer has a batch script; resume it with `.*resume="),
    "the script can't be read": ("resubmit {job}", {"{job}/job.sbatch": unreadable}, "job.sbatch"),
    "the script is not UTF-8": ("resubmit {job}", {"{job}/job.sbatch": b"\xff"}, "job.sbatch"),
    "the log can't be read": ("logs {job}", {"{job}/slurm-4001.out": unreadable}, "slurm-4001.out"),
    "the log is a folder": ("logs {job}", {"{job}/slurm-4001.out": folder}, "slurm-4001.out"),
    "the log is a FIFO": ("logs {job}", {"{job}/slurm-4001.out": fifo}, "slurm-4001.out|no log"),
    "there is no log": ("logs {job}", {"{job}/slurm-4001.out": gone}, "has no log yet"),
    "the folder can't be written": ("resubmit {job} --trust", {"{job}": read_only}, "(can't be written|written)"),
    "latest is a link to nothing": ("status --results {row}/results", {"row/results/latest": link("gone")}, "there is no run in .*/results yet"),
    "latest is a link to itself": ("status --results {row}/results", {"row/results/latest": link("latest")}, "there is no run in .*/results yet"),
    "results can't be read": ("status 4001 --results {row}/results", {"row/results": lambda p: (p.mkdir(), unreadable(p))[0]}, "results"),
}  # fmt: skip
NODE = "CPUTot=64 RealMemory=515000 Partitions=gpu"
NODES = {
    "nothing": (":", "Slurm shows no node with GPUs here"),
    "no settings": ("echo hello", "Slurm shows no node with GPUs here"),
    "no CPUs": ("echo 'NodeName=a Gres=gpu:4 RealMemory=515000 Partitions=gpu'", "Slurm shows no node with GPUs here"),
    "superscripts": ("echo 'NodeName=a Gres=gpu:4 CPUTot=² RealMemory=515000 Partitions=gpu'", "Slurm shows no node with GPUs here"),
    "bytes": (rf"printf 'NodeName=a Gres=gpu:4 {NODE}\377\n'", "a partition has a name that is not UTF-8"),
    "a failure": (FAILS, "scontrol.*Unable to contact slurm controller"),
    "no end": (HANGS, "scontrol.*(second|minute|answer)"),
    "no GPUs": (f"echo 'NodeName=a Gres=(null) {NODE}'", "Slurm shows no node with GPUs"),
}  # fmt: skip
GOOD_NODES = {
    "scontrol": f"echo 'PartitionName=gpu State=UP MaxTime=2-00:00:00'; echo 'NodeName=a Gres=gpu:a100:4 {NODE}'"
}
DOCTOR = {
    "trainer.max_epoch=3": r"'trainer\.max_epoch' is not a key.*trainer\.max_epochs",
    "framework=kears": "framework='kears' is not .*keras",
    "optimizer.lr=nan": r"optimizer\.lr=nan",
    "cluster=current": "is not a login node of any preset",
    "cluster=slurm cluster.time=soon": r"cluster\.time.*'soon' is not a time limit",
    "cluster=slurm cluster.scheduler=none": r"cluster\.scheduler=none.*cluster=local",
    "-m seed=1,2": "-m|seed",
    "name=größe": "name=.*letters",
    "paths.results=~nosuchuser": "~nosuchuser",
    "resume={row}/none": "resume|none",
}

ROWS = [
    *(Row("cluster=slurm paths.results={row}/results", says, programs={"sbatch": body}, writes=OWN_RUNS if body.endswith("exit 1") else KEPT, name=f"sbatch {what}", limit=150 if body == HANGS else 20)
      for what, (body, says) in SUBMITS.items()),
    Row("cluster=slurm", "sbatch is not on this machine: .*dry_run=true", writes=OWN_RUNS, name="no sbatch"),
    Row("cluster=slurm", "sbatch", files={"row/bin/sbatch": "no program\n"}, writes=OWN_RUNS, name="sbatch may not be executed"),
    Row("cluster=slurm", "sbatch", files={"row/bin/sbatch": folder}, writes=OWN_RUNS, name="sbatch is a folder"),
    Row("cluster=slurm", "sbatch", files={"row/bin/sbatch": with_mode(0o755, b"\x7fELF\0\0")}, writes=OWN_RUNS, name="sbatch is of another machine"),
    Row("cluster=pbs", "qsub is not on this machine", writes=OWN_RUNS, name="no qsub"),
    Row("cluster=pbs", "qsub refused the job: .*no queue", programs={"qsub": "echo no queue >&2; exit 3"}, writes=OWN_RUNS, name="qsub refuses"),
    Row("cluster=slurm dry_run=test", "sbatch is not on this machine", name="dry_run=test without sbatch"),
    Row("cluster=slurm dry_run=test", "sbatch --test-only: exit code 1: .*invalid account", programs={"sbatch": SUBMITS["refuses"][0]}, name="dry_run=test refused"),
    Row("cluster=neuron dry_run=test", "neuron rejects jobs without comment", programs={"sbatch": "echo ok"}, name="dry_run=test of a refused request"),
    *(Row(f"{verb} {{job}}", f"{tool}.*(Unable to contact|exit code|not on this machine|can't be asked|answer|second|signal)",
          command="jobs", programs={t: (body if t == tool else ":") for t in PROGRAMS if t != tool or body}, limit=90 if body == HANGS else 20,
          name=f"{verb} where {tool}: {what}")
      for tool in ("squeue",) for what, body in (("fails", FAILS), ("hangs", HANGS), ("fails without a word", "exit 1"))
      for verb in ("status", "cancel", "resubmit")),
    *(Row(f"resume={{job}} {words}", "(squeue|qstat|sacct|scontrol|queue).*(asked|answer|Unable|not on this machine|exit code)", programs=programs, name=f"resume= on a cluster where {what}")
      for what, words, programs in (
          ("squeue fails", "", {"squeue": FAILS, "sacct": FAILS, "scontrol": FAILS, "sbatch": "echo 4002"}),
          ("squeue fails with new words", "trainer.max_epochs=3", {"squeue": FAILS, "sacct": FAILS, "scontrol": FAILS, "sbatch": "echo 4002"}),
          ("squeue is missing", "", {"sbatch": "echo 4002"}))),
    Row("resume={job}", "job 4001 is running and belongs to this run: two would overwrite", programs={"squeue": QUEUED, "sbatch": "echo 4002"}, name="resume= of a run whose job runs"),
    Row("resume={job}", "sbatch refused the job: .*invalid account", programs={"squeue": "echo '4001|FAILED'", "sbatch": SUBMITS["refuses"][0]}, writes=f"{PUT_BACK}|{OWN_RUNS}", name="resume= that sbatch refuses"),
    Row("cancel {job}", "scancel.*(4001|Unable|refused|failed)", command="jobs", programs={"squeue": QUEUED, "scancel": FAILS}, name="scancel fails"),
    Row("cancel {job}", "scancel.*not on this machine", command="jobs", programs={"squeue": QUEUED}, name="scancel is missing"),
    Row("cancel {job}", "scancel.*(second|answer)", command="jobs", programs={"squeue": QUEUED, "scancel": HANGS}, name="scancel hangs", limit=90),
    Row("resubmit {job}", "there is nothing to submit again: .*is running", command="jobs", programs={"squeue": QUEUED, "sbatch": "echo 9"}, name="resubmit of a job that runs"),
    Row("resubmit {job} --trust", "sbatch refused the job", command="jobs", programs={"squeue": "echo '4001|FAILED'", "sbatch": SUBMITS["refuses"][0]}, writes=PUT_BACK, name="resubmit that sbatch refuses"),
    *(Row(words, says, environ=environ) for words, environ, says in ENVIRONS if says),
    *(Row(words, says, command="jobs", files={"row/a-file": "x"}, programs=dict.fromkeys(PROGRAMS, ":")) for words, says in JOBS.items()),
    *(Row(words, says, command="jobs", files=files, programs={"squeue": "echo '4001|FAILED'", "sbatch": "echo 9", "scancel": ":"}, name=f"{words.split()[0]} where {what}")
      for what, (words, files, says) in RUNS.items()),
    Row("status {row}/results/digits/gold", "gold", command="jobs", files={"{job}": lambda p: p.rename(p.with_name("gold"))}, programs={"squeue": ":", "sacct": ":", "scontrol": ":"}, code=0, name="status of a run folder by another name"),
    *(Row(words, says, command="doctor") for words, says in DOCTOR.items()),
    *(Row("mine", says, command="new_cluster", programs={"scontrol": body}, name=f"scontrol prints {what}", limit=90 if body == HANGS else 20) for what, (body, says) in NODES.items()),
    Row("mine", "scontrol is not on this machine", command="new_cluster"),
    Row("", "NAME", command="new_cluster"),
    *(Row(f"{name} --write", f"'{name.strip(chr(39))}' can't name a preset; use lower-case letters", command="new_cluster", programs=GOOD_NODES) for name in ("Mine", "../x", "a/b", "''", "größe", "a.b")),
    Row("mine --partition cpu", "there are no GPUs for you in partition cpu; those with GPUs: gpu", command="new_cluster", programs=GOOD_NODES),
    Row("slurm --write", r"slurm\.yaml already exists", command="new_cluster", programs=GOOD_NODES),
    Row("local --write", r"local\.yaml already exists", command="new_cluster", programs=GOOD_NODES),
    Row("mine --write", r"(mine\.yaml|cluster).*(written|permission)", command="new_cluster", programs=GOOD_NODES, files={"project/configs/cluster": read_only}, name="a preset where configs is read-only"),
    Row("mine --write", r"mine\.yaml", command="new_cluster", programs=GOOD_NODES, files={"project/configs/cluster/mine.yaml": link("/nothere/x")}, name="a preset where a dead link is"),
    Row("mine --write --partition", "--partition", command="new_cluster"),
]  # fmt: skip
