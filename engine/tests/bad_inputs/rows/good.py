"""Odd inputs that are valid and must keep working."""

from engine.tests.bad_inputs.row import Row

DRY = "dry run: nothing was written"
SAYS = {
    "dry_run=true paths.results={row}/größe": "/größe/digits/<run id>",
    "dry_run=true 'paths.results={row}/a b'": "/a b/digits/<run id>",
    "dry_run=true paths.results=~/results": "/row/home/results/digits/<run id>",
    "dry_run=true 'paths.results={row}/it'\"'\"'s'": "/it's/digits",
    "dry_run=true trainer.max_epochs='3'": DRY,
    "dry_run=true seed=0": DRY,
    "dry_run=true name=2024": "/2024/<run id>",
    "dry_run=true name=a-b_c.d=e+f": r"/a-b_c\.d=e\+f/<run id>",
    "dry_run=true optimizer.lr=1e-3": DRY,
    "dry_run=true optimizer.lr=1": DRY,
    "dry_run=true data.workers=0": DRY,
    "dry_run=true trainer.limit_val_batches=0": DRY,
    "dry_run=true model.dropout=0": DRY,
    "dry_run=true model=mlp model.hidden=[]": DRY,
    "dry_run=true framework=keras model=mlp model.hidden=[]": DRY,
    "dry_run=true cluster=fir cluster.account=def-me cluster.gpu_type=nvidia_h100_80gb_hbm3_1g.10gb": "gpu_type=nvidia_h100_80gb_hbm3_1g.10gb is not in the preset of fir, which lists h100",
    "dry_run=true cluster=fir cluster.account=def-me cluster.gpu_type=h10": "cluster.gpu_type=h10 is not in the preset of fir, which lists h100",
    "dry_run=true cluster=neuron 'cluster.comment=\"field=nlp;appl=pytorch\"' cluster.site.submit_below=[] cluster.partition=amd_a100nv_8,koni": "cluster.partition=koni is not in the preset of neuron, which lists amd_a100nv_8",
    "dry_run=true cluster=neuron cluster.check=warn cluster.mem=80G": "note: neuron rejects jobs without comment.*Source: https://docs-ksc",
    "dry_run=true cluster=ibex cluster.gpu_type=null cluster.constraint=v100": "--constraint=v100",
    "dry_run=true cluster=slurm cluster.nodelist=n1,n[3-4] cluster.time=60 cluster.time_min=30": r"--nodelist=n1,n\[3-4\]",
    "dry_run=true cluster=alvis cluster.account=NAISS2026-22-123": "note: C3SE closed Alvis on 2026-08-31",
    "-m dry_run=true seed=1,2 model=mlp,cnn": DRY,
    "dry_run=true cluster=slurm cluster.comment=größe": 'comment="?größe',
    "dry_run=true cluster=slurm cluster.mem=0": "--mem=0",
    "dry_run=true cluster=slurm cluster.time=1-12:00:00": "--time=",
    'dry_run=true cluster=slurm \'cluster.setup=["echo \\"a b\\""]\'': 'echo "a b"',
    "dry_run=true cluster=slurm paths.results={row}/größe": "/größe/digits/<run id>",
    "dry_run=true cluster=slurm 'cluster.extra=[\"--licenses=x\"]'": "--licenses=x",
    "dry_run=true cluster=slurm name='${data.name}-1'": "job-name=digits-1",
    "dry_run=true resume={run} trainer.max_epochs=3": DRY,
    "--help": "Groups: choose one of each",
    "--cfg job": "max_epochs: 15",
    "--cfg job trainer.max_epochs=3": "max_epochs: 3",
    "--version": "Hydra",
}

ONE_COMMAND = ("--cfg=job", "--run", "hydra.run.dir=/etc", "-m")

ROWS = [
    *(Row("dry_run=true resume={run}", rf"overrides\.txt: '{w}' belongs to one command", code=0, files={"{run}/overrides.txt": f"{w}\n"}, name=f"resume= where overrides.txt is {w}")
      for w in ONE_COMMAND),
    *(Row(words, says, code=0) for words, says in SAYS.items()),
    Row("dry_run=true", "digits", code=0, environ={"LC_ALL": "C", "LANG": "C"}, real=True, name="a C locale"),
    Row("dry_run=true paths.results={row}/größe", "gr", code=0, environ={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}, real=True, name="an output that takes ASCII only"),
    Row("dry_run=true", r"standard output can't be written \(No space left", code=2, stdout="/dev/full", real=True, name="a full output"),
    Row("dry_run=true experiment=mine", "/2026-01-01/<run id>", code=0, files={"project/configs/experiment/mine.yaml": "# @package _global_\nname: 2026-01-01\n"}, name="a name that YAML takes for a date"),
    Row("mine", r'partition: "a}:{b"', code=0, command="new_cluster", programs={"scontrol": "echo 'NodeName=a Gres=gpu:4 CPUTot=64 RealMemory=515000 Partitions=a}:{b'"}, name="a partition with braces"),
    Row("status {run}", "20260101-000000-aaaa  failed  on this machine", code=0, command="jobs"),
    Row("status {job}", "failed  job 4001 on .*step 28$", code=0, command="jobs", files={"{job}/run.json": '{"format": 2, "state": "failed", "metrics": {"val/acc": "x"}, "step": 3}'}, programs={"squeue": "echo 4001'|'FAILED"}, name="status where run.json has odd metrics"),
    Row("status {job}", "failed|lost", code=0, command="jobs", programs={"squeue": "echo 4001'|'FAILED"}),
    Row("--help", "Check the installation", code=0, command="doctor"),
    Row("--help", "resubmit", code=0, command="jobs"),
    Row("mine", "partition: gpu", code=0, command="new_cluster", programs={"scontrol": "echo 'NodeName=a Gres=gpu:a100:4 CPUTot=64 RealMemory=515000 Partitions=gpu'"}),
    Row("dry_run=true", "<run id>", code=0, environ={"USER": "", "HOME": ""}, name="no USER and no HOME"),
]  # fmt: skip
