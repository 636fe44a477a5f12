"""Training with PyTorch Lightning; `run.train` is the way in.

In order: `run.train_and_test` makes the module (`module.py`), the strategy (`strategies/make.py`) and a Trainer that leaves
signals, checkpoints and output to us (`trainer.py`). `run.attach` adds the callbacks, which Lightning calls in this order after each
batch: `RandomState`, `MetricsCallback` (metrics, the agreement to stop), `EarlyStop`, `CheckpointCallback` (when to save).
The last one calls `trainer.save_checkpoint`, which hands the state to `StateWriter` (what is saved): a copy into `Buffers`,
or with fsdp into `Shards`, written in the background. To resume, the Trainer loads the file with plain numbers only
(`restoring.py`), loop counters are set to the manifest's position (`position.py`), and `loaders.py` starts at that batch.
"""
