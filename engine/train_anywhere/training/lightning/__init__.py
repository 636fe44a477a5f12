"""Training with PyTorch Lightning; `run.train` is the way in.

In order: `run.make` makes what `task` names (`dropin.py`), the strategy (`strategies/make.py`), a Trainer that leaves signals,
checkpoints and output to us (`trainer.py`), and the parts of the data (`parts.py`). A native task becomes a module of ours (`module.py`);
a LightningModule of someone else is trained as it is. `attach.py` adds the callbacks, which Lightning calls in this order after each
batch: `Clock` (where a batch's time goes), the user's, `RandomState`, `RankState`, `MetricsCallback` (metrics, the agreement to stop),
`EarlyStop`, `CheckpointCallback` (when to save). What a module logs by itself leaves Lightning by `connector.py`, which makes it one
value of all ranks (`sharing.py`). The last one calls `trainer.save_checkpoint`, which hands the state to `StateWriter` (what is
saved): a copy into `Buffers`, or with fsdp into `Shards`, written in the background. To resume, the Trainer loads the file with plain
numbers only (`restoring.py`), loop counters are set to the manifest's position (`position.py`), and `loaders.py` starts at that batch.
"""
