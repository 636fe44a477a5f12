"""Keys of a job, its container, its side process and the loop, with values of the wrong kind."""

from engine.tests.bad_inputs.row import Damage, Row
from engine.tests.bad_inputs.rows.targets import FILES

JOB = {
    "cluster.constraint=''": r"cluster\.constraint='' is empty",
    "cluster.constraint={a:b}": r"cluster\.constraint=.* is not a string or a list",
    "'cluster.constraint=a\nb'": r"cluster\.constraint='a.nb' has a line break",
    "'cluster.exclude=a\nb'": r"cluster\.exclude=.*line break",
    "cluster.mail_type=SOMETIMES": r"cluster\.mail_type=SOMETIMES: sbatch does not know SOMETIMES; use some of BEGIN,END,FAIL",
    "cluster.mail_type='\"END,FIAL\"'": r"sbatch does not know FIAL",
    "cluster.retries=1001": r"cluster\.retries=1001 must be at most 1000",
    "cluster.local_disk=scratch": r"cluster\.local_disk=scratch is a relative path",
    "cluster.exclusive=[user]": r"cluster\.exclusive=",
    "cluster.site.write_below=[/scratch]": r"jobs on slurm can write only below /scratch.*paths\.results=/scratch/results",
    "cluster.site.submit_below=[/scratch]": "slurm accepts jobs only from below /scratch",
    "cluster.site.max_time=soon": r"cluster\.site\.max_time: 'soon' is not a time limit",
    "cluster.site.account='x.*'": r"rejects jobs without account: .*use cluster\.account=NAME",
    "cluster.site.comment=x cluster.comment=y": r"cluster\.comment=y does not have the form .*it must match x",
}
CONTAINER = {
    "container.mounts=/x": r"container\.mounts='/x' is not a list",
    "'container.mounts=[\"\"]'": r"container\.mounts\[0\]='' is empty",
    "container.mounts=['a:b:c:d']": r"container\.mounts: 'a:b:c:d' is not a folder, nor of the form OUTSIDE:INSIDE",
    "container.mounts=['/a:b']": r"container\.mounts: '/a:b' is not a folder",
    "'container.mounts=[\"/a,/b\"]'": r"container\.mounts: '/a,/b' is not a folder",
    "container.python=''": r"container\.python='' is empty",
}
HERE = {
    "container=pyxis container.image=a": "container=pyxis is for the ranks of a job, and cluster=local is this machine.*container=none",
    "container=apptainer": "container=apptainer is for the ranks of a job",
    "from_scratch=true": "from_scratch=true needs resume=RUN; a new run starts from scratch anyway.",
    "monitor.dashboard=''": r"monitor\.dashboard='' is empty",
    "monitor.dashboard='a {port'": r"monitor\.dashboard='a \{port' is not a command with a .port. placeholder",
    "monitor.dashboard='a {ports}'": r"is not a command with a .port. placeholder",
    "monitor.dashboard='a \"{port}'": r"is not a command with a .port. placeholder",
    "monitor.serve_address=999.1.1.1": r"monitor\.serve_address='999\.1\.1\.1' is not an address to listen on",
    "monitor.serve_address=1.2.3.4:80": r"monitor\.serve_address='1\.2\.3\.4:80' is not an address",
    "optimizer.name=sgd": "'optimizer.name=sgd' changes only a name and selects nothing; use optimizer=sgd",
    "strategy.name=ddp": "'strategy.name=ddp' changes only a name and selects nothing; use strategy=ddp",
    "task.name=regression": "use task=regression",
    "strategy=ddp strategy.bucket_cap_mb=0": r"strategy\.bucket_cap_mb=0 must be above 0",
    "strategy=horovod strategy.compression=zip": r"strategy\.compression='zip' is not one of none, fp16",
    "trainer.detect_nan=replay": r"^error: trainer\.detect_nan=replay is not available: use trainer\.detect_nan=stop, and resume",
    "data=text data.vocabulary=many": r"data\.vocabulary='many' is not a whole number",
    "data=text data.tokenizer=null": r"data\.tokenizer=null is not one of bytes, bpe or a string",
}
STAGE: dict[str, tuple[str, dict[str, Damage]]] = {
    "data=imagefolder data.dir={row}/a.tar": (r"a\.tar is an archive, which has to be unpacked before it is read; use data\.stage=true", {"row/a.tar": "no tar"}),
    "data=imagefolder data.dir={row}/none.tar data.stage=true": (r"none\.tar/train can't be listed", {}),
    "data._target_=mine.open_data data.stage=true": (r"mine\.open_data has no argument 'staged', see docs/how-to/your-code\.md", FILES),
    "data=text data.stage=maybe": (r"data\.stage='maybe' is not true or false", {}),
}  # fmt: skip
SECRETS = {
    "cluster=slurm 'cluster.setup=[\"export A=${oc.env:HOME}\"]'": r"cluster\.setup=.* would be written into the run folder with the variable's value",
    "cluster=slurm container=apptainer 'container.image=${oc.env:HOME}'": r"container\.image=.* would be written into the run folder",
}
IN_AN_IMAGE = "cluster=slurm container=apptainer container.image=/etc/hostname"
ROWS = [
    *(Row(f"cluster=slurm {words}", says) for words, says in JOB.items()),
    *(Row(f"{IN_AN_IMAGE} {words}", says, name=f"in an image, {words}") for words, says in CONTAINER.items()),
    *(Row(words, says, files=files) for words, (says, files) in STAGE.items()),
    *(Row(words, says) for words, says in {**HERE, **SECRETS}.items()),
    Row('cluster=pbs cluster.mail_type=\'"END,FAIL"\'', r"cluster\.mail_type=END,FAIL: PBS takes the letters.*use cluster\.mail_type=ea"),
]  # fmt: skip
