"""`scaling` and `report`: impossible grids, folders without a table or run."""

from engine.tests.bad_inputs.row import Row

SAYS = {
    "": "the following arguments are required",
    "model=mlp": "there is nothing to compare",
    "devices=": "'devices=' has an empty value; use devices=A,B",
    "devices=0,1": "devices=0 is not a number of devices",
    "devices=1.5": "devices=1.5 is not a number of devices",
    "'devices=\u0661'": "is not a number of devices",
    "devices=1,2 strategy=hrovod": "strategy=hrovod is not a choice. Did you mean 'horovod'",
    "devices=1,2 launch=srn cluster=slurm": "launch='srn' is not one of .*Did you mean 'srun'",
    "devices=1,2 launch=srun": "these runs are not jobs: leave it out",
    "devices=2 strategy=single": "strategy=single uses one device, but 2 are requested",
    "nodes=1,2 devices=1": "2x1.*trainer.nodes=2 needs a cluster",
    "devices=1,3 data.batch_size=64": "1x3.*can't be shared evenly by 3 devices",
    "devices=1,2 resume={run}": "resume= can't be given for a timing table",
    "devices=1,2 name=x": "name= can't be given",
    "devices=1,2 trainer.total_devices=3": "trainer.total_devices= can't be given",
    "devices=1,2 trainer.max_epoch=2": "'trainer.max_epoch' is not a key.*trainer.max_epochs",
    "devices=1,2 --weka": "unrecognized arguments|ambiguous",
    "devices=1,2 paths.results=/proc": "paths.results=/proc|can't be",
    "{row}": "contains no timing table",
    "{row} {run}": "there is nothing to compare|is not",
}
REPORTS = {
    "{row}/none": "no run is called",
    "20260101-000000-zzzz": "no run is called",
    "{run} {run}": "unrecognized arguments",
    "--results {row}/none": "there is no run in",
}

ROWS = [
    *(Row(words, says, command="scaling") for words, says in SAYS.items()),
    *(Row(words, says, command="report") for words, says in REPORTS.items()),
    Row("{run}", "run.json is damaged", command="report", files={"{run}/run.json": "{"}),
]
