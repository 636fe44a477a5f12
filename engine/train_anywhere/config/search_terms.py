"""Terms that users of other programs know, each with the page that answers it.

One table for three readers: the hint for a wrong key, `--help TERM`, and the search of the site (tools/site/search_terms.py).
"""

import re

TABLE = """
class weight, class weights, imbalanced classes | how-to/keras-fit | keras.io/api/models/model_training_apis
sample weight, sample weights | how-to/keras-fit | keras.io/api/models/model_training_apis
validation split, validation data | how-to/keras-fit | keras.io/api/models/model_training_apis
initial epoch, steps per execution, validation freq | how-to/keras-fit | keras.io/api/models/model_training_apis
KERAS_BACKEND, jax, torch backend, backend | how-to/keras-fit | keras.io/getting_started
train_step, custom train step | how-to/your-code | keras.io/guides/custom_train_step_in_tensorflow
ReduceLROnPlateau, BackupAndRestore | how-to/keras-fit | keras.io/api/callbacks
EarlyStopping, patience | how-to/early-stopping | keras.io/api/callbacks/early_stopping
PyDataset, tf.data, tfrecord, flow_from_directory | how-to/own-dataset | keras.io/api/data_loading
ModelCheckpoint, save_top_k, every_n_train_steps | how-to/checkpoint-frequency | lightning.ai: ModelCheckpoint
ckpt_path, resume from checkpoint, load_from_checkpoint | how-to/time-limit | lightning.ai: Trainer.fit
LearningRateMonitor, lr scheduler, learning rate scheduler, warmup | how-to/trainer-options | lightning.ai: configure_optimizers
lr finder, lr_find, Tuner, auto_lr_find | how-to/hyperparameter-search | lightning.ai: Tuner
EMA, SWA, weight averaging, StochasticWeightAveraging | how-to/trainer-options | lightning.ai: WeightAveraging
LightningCLI, trainer flags, auto_scale_batch_size | how-to/trainer-options | lightning.ai: Trainer
overfit batches, sanity check, fast dev run | how-to/trainer-options | lightning.ai: debug your model
profiler, SimpleProfiler, AdvancedProfiler, bottleneck | how-to/trainer-options | lightning.ai: profiler
breakpoint, pdb, debugger, py-spy | how-to/running-job | docs.python.org/3/library/pdb
self.log, prog_bar, self.log_dict | how-to/custom-metric | lightning.ai: logging
torchmetrics, confusion matrix, f1 score | how-to/custom-metric | lightning.ai: torchmetrics
deepspeed, ZeRO, model parallel, tensor parallel | concepts/strategies | lightning.ai: strategies
multi-gpu, several GPUs, DDP, data parallel, DDPStrategy | concepts/strategies | lightning.ai: GPU training
TorchScript, to_torchscript, torch.jit | how-to/use-a-trained-model | lightning.ai: deploy
onnx, savedmodel, tensorrt, serving | how-to/use-a-trained-model | onnx.ai
LoRA, PEFT, adapter, QLoRA | how-to/fine-tune | huggingface.co/docs/peft
Hugging Face, transformers, from_pretrained, timm | how-to/fine-tune | huggingface.co/docs/transformers
accelerate, hf trainer, fabric | how-to/any-program | huggingface.co/docs/accelerate
custom dataset, DataLoader, collate_fn, sampler | how-to/own-dataset | docs.pytorch.org: torch.utils.data
num_workers, pin_memory, prefetch, slow dataloader | how-to/large-data | docs.pytorch.org: torch.utils.data
S3, webdataset, streaming, parquet, petastorm | how-to/large-data | github.com/webdataset/webdataset
autocast, GradScaler, bf16, fp16, amp | how-to/accumulate-gradients | docs.pytorch.org: amp
seed_everything, deterministic, reproducible | concepts/reproducibility | lightning.ai: reproducibility
job pending, pending reason, why does my job not start | how-to/job-waits | slurm.schedmd.com/squeue
ReqNodeNotAvail, PartitionTimeLimit, BeginTime | how-to/job-waits | slurm.schedmd.com/job_reason_codes
QOSMaxGRESPerUser, AssocGrpGRES, AssocGrpCPUMinutesLimit | how-to/job-waits | slurm.schedmd.com/job_reason_codes
squeue, queue, JobHeldUser, sprio, fairshare | how-to/job-waits | slurm.schedmd.com/squeue
wall time, walltime, requeue, TIMEOUT, USR1 | how-to/time-limit | slurm.schedmd.com/sbatch
sbatch, SBATCH, job script, slurm script | how-to/batch-script | slurm.schedmd.com/sbatch
salloc, srun, interactive job | how-to/running-job | slurm.schedmd.com/salloc
job array, array job, submitit | how-to/hyperparameter-search | slurm.schedmd.com/job_array
dependency, afterok, singleton | how-to/chain-jobs | slurm.schedmd.com/sbatch
scancel, sacct, seff, scontrol | how-to/monitoring | slurm.schedmd.com/scancel
out of memory, oom, oom-kill, NODE_FAIL | how-to/troubleshooting | slurm.schedmd.com/squeue
conda, mamba, venv, virtualenv, pip, uv | how-to/environments | docs.conda.io
container, docker, apptainer, singularity, enroot | how-to/environments | apptainer.org/docs
shared folder, group folder, umask, permissions | how-to/environments | man7.org: umask
another cluster, move a run, rsync results | how-to/move-a-run | rsync.samba.org
plot, figure, paper, matplotlib, seaborn | how-to/figures | matplotlib.org
multirun, sweeper, launcher, optuna, grid search | how-to/hyperparameter-search | hydra.cc: multi-run
defaults list, config group, override, hydra | tutorials/getting-started | hydra.cc: defaults list
hydra.run.dir, hydra.sweep.dir, chdir, outputs, log_dir, default_root_dir | reference/run-folder | hydra.cc: working directory
wandb.init, wandb sync, offline, artifact, watch | how-to/track-experiments | docs.wandb.ai
wandb sweep, W&B sweep, sweep agent, ray tune | how-to/hyperparameter-search | docs.wandb.ai: sweeps
wandb, weights and biases, mlflow, neptune, comet | how-to/track-experiments | docs.wandb.ai
tensorboard, SummaryWriter, add_scalar | how-to/tensorboard | tensorflow.org/tensorboard
tags, wandb group, wandb entity, log_model | how-to/track-experiments | docs.wandb.ai: wandb.init
email, mail-type, slack, notification | how-to/monitoring | slurm.schedmd.com/sbatch
exclude, exclude nodes, bad node, drained node | how-to/job-hangs | slurm.schedmd.com/sbatch
gres, gpus-per-node, mem-per-cpu, cpus-per-gpu | reference/keys | slurm.schedmd.com/sbatch
NCCL, NCCL_DEBUG, NCCL timeout, Watchdog | how-to/troubleshooting | docs.pytorch.org: torch.distributed
horovod, horovodrun, check-build, mpirun | concepts/strategies | horovod.readthedocs.io
SyncBatchNorm, sync_batchnorm, MirroredStrategy | concepts/strategies | lightning.ai: Trainer
augment, augmentation, transforms, normalize | how-to/own-dataset | docs.pytorch.org: torchvision.transforms
gradient clipping, gradient_clip_val, global_clipnorm, clipvalue | how-to/accumulate-gradients | keras.io/api/optimizers
jupyter, notebook, trainer.predict, model.predict | how-to/use-a-trained-model | lightning.ai: predict
instantiate, _target_ | how-to/your-code | hydra.cc: instantiate
nan loss, inf, detect anomaly, loss is nan | how-to/troubleshooting | docs.pytorch.org: detect_anomaly
"""
"""Rows of terms, the page that answers them, and where they are from. A program's own name for a key is in `other_names`."""

TERMS = [row.split(" | ") for row in TABLE.strip().splitlines()]


def find_page(term: str) -> str | None:
    """Return the page for a term, such as `how-to/figures`. None if it has none.

    Args:
        term: words or a key in any form: `class_weight`, `trainer.class-weight`, `Class weights`.
    """
    wanted = {_plain(term), _plain(term.rpartition(".")[2])}
    return next((page for terms, page, _ in TERMS if wanted & {*map(_plain, terms.split(", "))}), None)


def _plain(term: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", term.lower()).strip()
