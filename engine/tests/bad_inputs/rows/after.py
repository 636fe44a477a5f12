"""`src/evaluate.py` and `init=`: wrong runs, unreadable checkpoints, taken files, other formats."""

from engine.tests.bad_inputs.row import Damage, Row, edited, fifo, folder, gone, link, unreadable
from engine.tests.bad_inputs.rows.resume import CHECKPOINTS

NO_FIFO = {what: files for what, (files, _) in CHECKPOINTS.items()}
SAYS = {
    "{row}/none": "none is not a run folder",
    "": "not a run folder|results/latest",
    "{run} {row}/none": "one run at a time",
    "{run}/checkpoints": "is not a run folder",
    "'{row}/a\nb'": "not a run folder",
    "x" * 300: "is not a run folder|too long",
    "{run} --split tset": "invalid choice: 'tset'",
    "{run} --checkpoint bets": "--checkpoint bets is not a checkpoint; use best, newest or a step",
    "{run} --checkpoint 5": "no checkpoint of step 5; it has 14, 28",
    "{run} --checkpoint 99999999999999999999999": "is not a checkpoint; use best",
    "{run} --predict {row}/a.json": r"must end in \.npz or \.csv",
    "{run} --predict {row}/none/a.csv": "none is not a folder",
    "{run} --predict {row}/there.csv": "there.csv exists and is not overwritten",
    "{run} --predict {row}/" + "x" * 300 + ".csv": "can't be written .*too long",
    "{run} --predict ~no-such-user/a.csv": "~no-such-user is not a folder",
    "{run} --predict {row}/loop.csv": "loop.csv exists and is not overwritten",
    "{run} --export savedmodel": "framework=lightning; use one of torch, safetensors, peft, torch.export, onnx",
    "{run} --export pickle": "pickle is not a format",
    "{run} --export torch --to {row}/there.csv": "exists and is not overwritten",
    "{run} --export torch --to {row}/none/w.pt": "none is not a folder",
    "{run} --to w.pt": "add --export FORMAT",
    "{run} --generate hi --tokens 0": "--tokens 0 must be from 1",
    "{run} --generate hi --temperature -1": "--temperature -1.0 must be 0 or above",
    "{run} --generate hi --temperature nan": "--temperature nan must be",
    "{run} --generate hi --seed -1": "--seed -1 must not be negative",
    "{run} cluster=neuron after={run} --split val": "cluster=neuron can't be changed.*`python src/run.py cluster=NAME -- src/evaluate.py RUN` submits",
    "{run} trainer.nodes=2": "trainer.nodes=2 can't be changed",
    "{run} after={run}": "after=.* can't be changed",
    "{run} model=mlp": "model=mlp can't be changed",
    "{run} data.batch_size=3": "data.batch_size=3 can't be changed",
    "{run} trainer.limit_test_batches=x": "limit_test_batches='x' is not",
    "{run} 'data.dir={a: ['": "data.dir=.* is not a YAML value",
}
FILES: dict[str, tuple[dict[str, Damage], str]] = {
    "config.yaml cut off": ({"{run}/config.yaml": "name: digits\n"}, "config.yaml is damaged"),
    "config.yaml of another kind": ({"{run}/config.yaml": "[1]\n"}, "config.yaml is damaged"),
    "config.yaml a FIFO": ({"{run}/config.yaml": fifo}, "is not a run folder"),
    "config.yaml unreadable": ({"{run}/config.yaml": unreadable}, "can't be read"),
    "code of its own": ({"{run}/config.yaml": edited("src.models.lightning.cnn.cnn", "os.system")}, "os.system.*trust=true"),
    "overrides.txt that names a file": ({"{run}/overrides.txt": "model=../../x\n"}, "is not a choice of this project"),
    "overrides.txt a folder": ({"{run}/overrides.txt": folder}, "overrides.txt can't be read"),
}  # fmt: skip
INIT = {
    "init={row}/none": "none is not a run folder",
    "init=": "init.run=|init",
    "init={run} init.checkpoint=bets": r"init\.checkpoint='bets' is not",
    "init={run} init.strict=maybe": r"init\.strict='maybe' is not true or false",
    "init={run} framework=keras": "framework=lightning, and its weights fit only that",
    "init.runn=x": r"'init\.runn' is not a key.*init\.run",
    "resume={run} init={row}/none": r"init\.run=.*can't be changed by resume=",
    "cluster=slurm init={row}/none": "none is not a run folder",
}
THERE: dict[str, Damage] = {"row/there.csv": "mine", "row/loop.csv": link("loop.csv")}

ROWS = [
    *(Row(words, says, command="evaluate", files=THERE) for words, says in SAYS.items()),
    *(Row("{run}", says, command="evaluate", files=files, name=f"evaluate where {what}") for what, (files, says) in FILES.items()),
    *(Row("{run}", r"no checkpoint that can be read|checkpoints", command="evaluate", files=files, name=f"evaluate of checkpoints: {what}") for what, files in NO_FIFO.items()),
    *(Row("init={run}", r"no checkpoint that can be read|checkpoints", files=files, name=f"init= of checkpoints: {what}") for what, files in NO_FIFO.items()),
    *(Row(words, says) for words, says in INIT.items()),
    Row("--help", "--generate TEXT", code=0, command="evaluate"),
    Row("init={run}", "config.yaml", files={"{run}/config.yaml": gone}, name="init= of a run without config.yaml"),
]  # fmt: skip
