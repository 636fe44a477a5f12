"""Searches: unknown keys of the sweeper, invalid spaces, a damaged study."""

from engine.tests.bad_inputs.row import Row

SWEEPER = "hydra.sweeper"
OPTIONS = {
    f"seed=1,2 {SWEEPER}.pruner=medain": "pruner=medain is not known; use one of none, median",
    f"seed=1,2 {SWEEPER}.n_trials=many": "n_trials=many is not a whole number from 1",
    f"seed=1,2 {SWEEPER}.n_trials=null": "n_trials=None is not a whole number from 1",
    f"seed=1,2 {SWEEPER}.sampler=[tpe]": r"sampler=\['tpe'\] is not known",
    f"seed=1,2 {SWEEPER}.study_name=''": "study_name= can't name a folder",
    f"seed=1,2 {SWEEPER}.direction=minimize": rf"'{SWEEPER}\.direction' is not a key of hydra/sweeper=optuna, .*checkpoint\.mode",
    f"seed=1,2 +{SWEEPER}.storage=x": rf"'{SWEEPER}\.storage' is not a key of hydra/sweeper=optuna",
    f"{SWEEPER}.params=3": r"hydra\.sweeper\.params=3 is not a search space",
    "seed=1,2 resume={run}": "resume= continues one",
    "seed=1,2 after={run}": "after=RUN makes a job wait in a queue",
    "seed=1,2 checkpoint.monitor=val/f1": "checkpoint.monitor=val/f1 is not a known metric",
    "seed=1,2 name=a/b": "name='a/b' can't name a folder",
    "seed=1,2 paths.results={row}/a-file": "a-file is a file, not a folder",
    "cluster=slurm,neuron": "cluster=slurm as a plain value",
    "trainer.nodes=1,2": r"trainer\.nodes=2 needs a cluster",
}
SPACES = {
    "interval(a,b)": r"optimizer\.lr='interval\(a,b\)' is not a number",
    "interval(nan,1)": "from a lower to a higher number",
    "interval(0,inf)": r"optimizer\.lr=inf must be a finite number",
    "tag(log,1,2)": r"optimizer\.lr='tag\(log,1,2\)' is not a number",
    "tag(logg,interval(0.1,1))": "the tag logg can't be used here: only an interval can have a tag, log",
    "range(0.1,1,0)": "an empty range",
    "choice(range(1,3),5)": r"optimizer\.lr=",
    "1,range(3)": "one of its values is a sweep itself",
    "choice()": r"optimizer\.lr='choice\(\)' is not a number",
}
WITHOUT = {
    f"{SWEEPER}.n_trials=3 seed=1": rf"'{SWEEPER}\.n_trials' is a key of hydra/sweeper=optuna; add that, and -m",
    f"-m {SWEEPER}.n_trials=3 seed=1,2": rf"'{SWEEPER}\.n_trials' is a key of hydra/sweeper=optuna",
}
FOUND = "project/results/digits/mine/study.json"
ROWS = [
    Row(f"-m hydra/sweeper=optuna seed=1,2 {SWEEPER}.study_name=mine", "the study's folder .*/mine can't be made", files={"project/results/digits/mine": "x"}, name="a study where a file is"),
    *(Row(f"-m hydra/sweeper=optuna {words}", says, files={"row/a-file": "x"}) for words, says in OPTIONS.items()),
    *(Row(f"-m hydra/sweeper=optuna 'optimizer.lr={space}'", says) for space, says in SPACES.items()),
    *(Row(words, says) for words, says in WITHOUT.items()),
    *(Row(f"-m hydra/sweeper=optuna seed=1,2 {SWEEPER}.study_name=mine", "is a study of another command", files={FOUND: text}, name=f"a study whose study.json is {text[:20]}")
      for text in ('{"arguments": ["seed=3,4"], "trials": 2}', '{"arguments": 3}', "[" * 3000)),
]  # fmt: skip
