"""Broken files of the configuration, and folders in which no run can be."""

from engine.tests.bad_inputs.row import Row, folder, gone, link, read_only, unreadable
from engine.tests.bad_inputs.rows.clusters import BROKEN

CNN = "project/configs/model/cnn.yaml"
GROUPS = ("model/cnn", "optimizer/adamw", "data/digits", "strategy/auto", "train")
YAML = ("a tab", "a key twice", "no UTF-8", "a list", "an open quote")
EXPERIMENTS = {
    "a tab": ("trainer:\n\tmax_epochs: 3\n", r"mine\.yaml.*line 2"),
    "no package line": ("trainer:\n  max_epochs: 3\n", r"# @package _global_"),
    "a slip": ("# @package _global_\ntrainer:\n  max_epoch: 3\n", r"'?trainer\.max_epoch'?.*(mine|max_epochs)"),
    "an unknown default": ("# @package _global_\ndefaults:\n  - override /model: resnet\n", r"resnet.*(mine|resnet18)"),
    "an unknown group": ("# @package _global_\ndefaults:\n  - override /modle: cnn\n", r"modle"),
    "a wrong type": ("# @package _global_\ntrainer:\n  max_epochs: many\n", r"trainer\.max_epochs='many' is not -1 or a whole number"),
    "a value instead of a section": ("# @package _global_\ntrainer: 3\n", r"trainer='?3'? is not a section|trainer"),
    "nan": ("# @package _global_\noptimizer:\n  lr: .nan\n", r"optimizer\.lr=nan"),
    "itself": ("# @package _global_\ndefaults:\n  - mine\n  - _self_\n", r"mine"),
    "a reference to nothing": ("# @package _global_\nname: ${nothere}\n", r"nothere"),
    "a set": ("# @package _global_\nname: !!set {a}\n", "name|mine"),
    "bytes": ("# @package _global_\nname: !!binary aGVsbG8=\n", "name|mine"),
    "a key that is a number": ("# @package _global_\n3: 4\n", "3"),
    "many aliases": ("# @package _global_\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9 if i else ['1'])}]\n" for i in range(4)), "'a0' is not a key"),
}  # fmt: skip
FOLDERS = {
    "paths.results={row}/a-file": "a-file.*paths.results=",
    "paths.results={row}/a-file/below": "a-file.*paths.results=",
    "paths.results={row}/closed": "closed.*paths.results=",
    "paths.results={row}/unreadable": "unreadable.*paths.results=",
    "paths.results={row}/dangling": "dangling.*paths.results=",
    "paths.results={row}/loop": "loop.*paths.results=",
    "paths.results={row}/odd": "latest.*(folder|link)",
    "paths.results={row}/taken": "digits.*paths.results=|taken",
    "paths.results=''": r"paths\.results=.*paths\.results=|paths\.results='' ",
    "paths.results=~nosuchuser": r"~nosuchuser",
    "paths.results=/proc": "/proc.*paths.results=",
    "paths.results=/dev/null": "/dev/null.*paths.results=",
    "paths.results={row}/" + "x" * 300: r"paths\.results=.*(long|can't)",
    "paths.results={row}/" + "/".join(["y" * 200] * 25): r"paths\.results=.*(long|can't)",
    "paths.data='' data=mnist data.download=false": "data",
    "data=imagefolder data.dir={row}/none": r"/none.*data\.dir|data\.dir=.*/none",
    "data=imagefolder data.dir={row}/home": r"/home.*train|data\.dir=",
    "data=imagefolder data.dir={row}/a-file": r"a-file",
    "data=imagefolder data.dir=~nosuchuser": "~nosuchuser",
    "data=imagefolder data.dir={row}/unreadable": r"unreadable",
    "data=mnist data.dir={row}/a-file": r"a-file",
    "checkpoint.local=~nosuchuser": "~nosuchuser",
    "checkpoint.local={row}/a-file": r"checkpoint\.local=.*a-file",
    "checkpoint.local={row}/closed": r"checkpoint\.local=.*closed",
}
AROUND = {
    "row/a-file": "text\n",
    "row/closed": read_only,
    "row/unreadable": lambda p: (p.mkdir(), unreadable(p))[0],
    "row/dangling": link("nothere"),
    "row/loop": link("loop"),
    "row/odd/latest": folder,
    "row/taken/digits": "a file where the runs would be\n",
}
ON_A_CLUSTER = ("a-file", "closed", "unreadable", "dangling", "loop", "odd", "taken")

TARGET = "name: cnn\n_target_: {lightning: src.models.lightning.cnn.cnn, keras: src.models.keras.cnn.cnn}\nfrom_data: {shape: shape, outputs: outputs}\n"
ROWS = [
    *(Row("", rf"{g.split('/')[-1]}\.yaml", files={f"project/configs/{g}.yaml": BROKEN[what]}, name=f"{g}.yaml with {what}")
      for g in GROUPS for what in YAML),
    Row("", r"cnn\.yaml.*([Pp]ermission|can't be read)", files={"project/configs/model/cnn.yaml": unreadable}, name="cnn.yaml can't be read"),
    Row("", "cnn", files={CNN: gone}, name="cnn.yaml is gone"),
    Row("", r"'model\.depth' is not an argument of", files={CNN: TARGET + "width: 8\ndropout: 0.1\ndepth: 3\n"}, name="cnn.yaml with one key more"),
    Row("", r"'model\.dropout' is missing", files={CNN: TARGET + "width: 8\n"}, name="cnn.yaml with one key less"),
    Row("", "model", files={CNN: ""}, name="cnn.yaml is empty"),
    Row("", r"train(\.yaml)?", files={"project/configs/train.yaml": gone}, name="train.yaml is gone"),
    Row("", "configs", files={"project/configs": gone}, name="configs is gone"),
    Row("", "train", files={"project/configs/train.yaml": ""}, name="train.yaml is empty"),
    *(Row("experiment=mine", says, files={"project/configs/experiment/mine.yaml": text}, name=f"an experiment with {what}")
      for what, (text, says) in EXPERIMENTS.items()),
    *(Row(words, says, files=AROUND) for words, says in FOLDERS.items()),
    *(Row(f"cluster=slurm paths.results={{row}}/{n}", rf"{n}.*paths\.results=|latest", files=AROUND, programs={"sbatch": "echo 7"}) for n in ON_A_CLUSTER),
    Row("--config-dir {row}/unreadable/below", "is not a folder", files=AROUND),
    Row("list --results {row}/unreadable/below", "(?i)permission denied", command="jobs", files=AROUND),
    Row("{row}/unreadable/below", "is not a run folder", command="evaluate", files=AROUND),
    Row("-m seed=1,2 paths.results={row}/closed", r"closed.*paths\.results=", files=AROUND),
    Row("", "results.*paths.results=", files={"project/results": "a file\n"}, name="results is a file"),
    Row("", "results.*paths.results=", files={"project/results": read_only}, name="results is read-only"),
    Row("", "results.*paths.results=", files={"project/results": link("/scratch/purged")}, name="results is a link to nothing"),
    Row("data=mnist data.download=false paths.data={row}/none", r"(none|MNIST).*(data\.download|data\.dir|paths\.data)", name="no MNIST and no download"),
]  # fmt: skip
