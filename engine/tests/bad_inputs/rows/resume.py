"""`resume=` of folders that are not runs, of damaged ones, and with changes of the run."""

from engine.tests.bad_inputs.row import (
    Damage,
    Row,
    edited,
    fifo,
    folder,
    foreign,
    gone,
    huge,
    link,
    read_only,
    unreadable,
)

DAMAGE: dict[str, Damage] = {
    "gone": gone,
    "empty": "",
    "no UTF-8": b"\xff\xfe\xfa\n",
    "no YAML or JSON": "{a: [\n",
    "a list": "[1, 2]\n",
    "a word": "hello\n",
    "a folder": folder,
    "a FIFO": fifo,
    "unreadable": unreadable,
    "a link to nothing": link("nothere"),
    "a link to itself": link("config.yaml"),
    "64 MiB of zeros": huge,
    "control characters": "\x00\x01\x02\n",
}
NEEDED = {
    "config.yaml": r"config\.yaml|not a run folder",
    "overrides.txt": r"overrides\.txt",
    "run.json": r"run\.json",
}
# harmless damage: the run resumes without what the file said, or the file is data of another kind
FINE = {
    ("overrides.txt", "empty"), ("run.json", "gone"), ("overrides.txt", "a link to itself"), ("run.json", "a link to itself"),
}  # fmt: skip
KEYS = {
    "model: 3\n": "config.yaml|model",
    "data: [1]\n": "config.yaml|data",
    "{}\n": "config.yaml|missing|framework",
    "framework: lightning\n": "config.yaml|missing",
    "a: !!python/object/apply:os.system ['touch /tmp/HACKED']\n": "config.yaml",
    "? [a]\n: 3\n": "config.yaml",
    "3: 4\n": "config.yaml|'3' is not a key",
    "null\n": "config.yaml",
}
OVERRIDES = {
    "trainer.max_epoch=3\n": r"trainer\.max_epoch",
    "model=nothere\n": "nothere",
    "no override\n": "no override",
    "cluster=slurm\n": r"cluster|scheduler|sbatch",
}
CHANGES = {
    "seed=5": r"seed=5 can't be changed by resume= \(the run has 1\); start a new run",
    "framework=keras": r"framework=keras can't be changed by resume= \(the run has lightning\)",
    "model=mlp": r"model\.name=mlp can't be changed",
    "optimizer=sgd": r"optimizer\.name=sgd can't be changed",
    "data=synthetic": r"data\.name=synthetic can't be changed",
    "paths.results=/other": r"paths\.results=/other can't be changed",
    "trainer.max_epochs=0": r"trainer\.max_epochs=0 must be at least 1",
    "trainer.max_epochs=-2 trainer.max_step=3": r"trainer\.max_step'? is not a key",
    "optimizer.lr=nan": r"optimizer\.lr=nan",
    "model=mlpp": r"model=mlpp is not a choice|model\.name=mlpp can't be changed",
    "BAD": "'BAD' is not of the form key=value",
}
PLACES = {
    "resume={row}/none": "none is not a run folder",
    "resume={row}": "is not a run folder .*config.yaml",
    "resume=results/latest": "results/latest is not a run folder",
    "resume={run}/config.yaml": "config.yaml is not a run folder",
    "resume=~nosuchuser/run": "~nosuchuser",
    "resume=''": r"resume=",
    "resume={row}/" + "x" * 300: "not a run folder|too long",
    "'resume={row}/a\nb'": "not a run folder|line break",
    "'resume={row}/größe'": "größe.* is not a run folder",
    "resume={row}/loop": "loop",
    "resume={row}/unreadable/run": "unreadable",
    "resume={run} resume={row}/none": "none is not a run folder",
    "resume=http://a/b": "is not a run folder",
}
CHECKPOINTS: dict[str, tuple[dict[str, Damage], str]] = {
    "all damaged": ({f"{{run}}/checkpoints/{n}/model.ckpt": b"no" for n in ("00000014", "00000028")}, r"from_scratch=true"),
    "no manifest": ({f"{{run}}/checkpoints/{n}/manifest.json": gone for n in ("00000014", "00000028")}, r"from_scratch=true"),
    "manifests that are lists": ({f"{{run}}/checkpoints/{n}/manifest.json": "[]" for n in ("00000014", "00000028")}, r"from_scratch=true"),
    "manifests of another form": ({f"{{run}}/checkpoints/{n}/manifest.json": '{"files": {"model.ckpt": 3}}' for n in ("00000014", "00000028")}, r"from_scratch=true"),
    "steps that are words": ({f"{{run}}/checkpoints/{n}/manifest.json": '{"files": {}, "step": "x", "epoch": 1, "batch": 0, "metrics": {}, "value": 1, "framework": "lightning"}' for n in ("00000014", "00000028")}, r"from_scratch=true"),
    "files outside of it": ({f"{{run}}/checkpoints/{n}/manifest.json": '{"files": {"../../../../../etc/passwd": {"size": 1}}, "step": 1, "epoch": 1, "batch": 0, "metrics": {}, "value": 1, "framework": "lightning"}' for n in ("00000014", "00000028")}, r"from_scratch=true"),
    "FIFOs": ({f"{{run}}/checkpoints/{n}/model.ckpt": fifo for n in ("00000014", "00000028")}, r"from_scratch=true"),
    "unreadable": ({"{run}/checkpoints": unreadable}, r"checkpoints"),
    "a file": ({"{run}/checkpoints": lambda p: (gone(p), p.write_text("x"))[0]}, r"checkpoints"),
    "all gone": ({"{run}/checkpoints": gone}, r"from_scratch=true"),
    "an empty folder": ({"{run}/checkpoints": lambda p: (gone(p), p.mkdir())[0]}, r"from_scratch=true"),
}  # fmt: skip


ROWS = [
    *(Row("resume={run}", says, files={f"{{run}}/{file}": damage}, name=f"resume= where {file} is {what}")
      for file, says in NEEDED.items() for what, damage in DAMAGE.items() if (file, what) not in FINE),
    *(Row("resume={run}", says, files={f"{{run}}/{file}": text}, name=f"resume= where {file} is {text.strip()}")
      for file, texts in {"config.yaml": KEYS, "overrides.txt": OVERRIDES}.items() for text, says in texts.items()),
    *(Row("resume={run} trainer.max_epochs=3", says, files=files, name=f"resume= of checkpoints: {what}") for what, (files, says) in CHECKPOINTS.items()),
    *(Row(f"resume={{run}} {words}", says) for words, says in CHANGES.items()),
    *(Row(words, says, files={"row/loop": link("loop"), "row/unreadable": lambda p: (p.mkdir(), unreadable(p))[0]}) for words, says in PLACES.items()),
    Row("resume={run}", r"(written|read-only|writable)", files={"{run}": read_only}, name="resume= of a read-only run folder"),
    Row("resume={run}", r"can't be read|[Pp]ermission", files={"{run}": unreadable}, name="resume= of an unreadable run folder"),
    Row("resume={run}", r"run\.json", files={"{run}/run.json": '{"state": '}, name="resume= where run.json is cut off"),
    *(Row(words, r"was written by another version of this project \(run\.json has format None", command=command, files={"{run}/run.json": '{"state": "failed", "parts": []}'}, name=f"{command} {words} of another version")
      for command, words in (("train", "resume={run}"), ("train", "init={run}"), ("evaluate", "{run}"), ("report", "{run}"), ("jobs", "best {run}"), ("jobs", "status {run}"))),
    Row("resume={run}", r"(run\.json|written)", files={"{run}/run.json": lambda p: (p.unlink(), p.mkdir())[0], "{run}/metrics.csv": gone}, name="resume= where run.json is a folder, no metrics"),
    *(Row("resume={job}", "(touch|HACKED).*trust=true|trust=true", files={"{job}/config.yaml": edited(old, new), "{job}": foreign},
          programs={"squeue": "echo '4001|FAILED'", "sbatch": "echo 9"}, name=f"resume= of another user's run with {new}")
      for old, new in (("setup: []", "setup: [touch HACKED]"), ("modules: []", "modules: [HACKED]"), ("venv: null", "venv: /tmp/HACKED"), ("conda: null", "conda: /tmp/HACKED"))),
    *(Row(words, "brings .*HACKED.*trust=true|brings .*os.mkdir.*trust=true", command=command, files={"{run}/config.yaml": edited(old, new)}, name=f"{command} of a run that brings {what}")
      for command, words in (("train", "resume={run} dry_run=true"), ("evaluate", "{run}"))
      for what, old, new in (("a dashboard", "  dashboard: null", "  dashboard: touch HACKED {port}"), ("a check", "src.data.checks.digits", "os.mkdir"))),
    Row("resume={run} dry_run=true", "'hydra.callbacks.a._target_=os.makedirs' belongs to one command", code=0, files={"{run}/overrides.txt": "hydra.callbacks.a._target_=os.makedirs\n+hydra.callbacks.a.name=HACKED\n"},
        name="resume= of a run whose overrides.txt has callbacks of Hydra"),
    Row("init={run} dry_run=true", "init.run=.* was trained with model._target_=os.system", files={"{run}/config.yaml": edited("src.models.lightning.cnn.cnn", "os.system")}, name="init= of a run that brings a model"),
    Row("resubmit {job}", "is not a script that you have submitted from there, and it would run as you", command="jobs", programs={"squeue": "echo '4001|FAILED'", "sbatch": "echo 9"}, name="resubmit of another user's script"),
]  # fmt: skip
