"""Terms that users of other programs know, each with the page that answers it.

One table for three readers: the hint for a wrong key, `--help TERM`, and the search of the site (tools/site/search_terms.py).
"""

import re

TABLE = """
class weight, imbalanced classes, class imbalance | how-to/keras-fit | keras.io/api/models/model_training_apis
sample weight, validation split, validation data | how-to/keras-fit | keras.io/api/models/model_training_apis
initial epoch, steps per execution, validation freq | how-to/keras-fit | keras.io/api/models/model_training_apis
model.fit, model.compile, save_best_only, TerminateOnNaN | how-to/keras-fit | keras.io/api/callbacks
KERAS_BACKEND, jax, torch backend, backend, keras torch | how-to/keras-fit | keras.io/getting_started
custom training loop, own training loop, training loop | how-to/own-loop | lightning.ai: own loop
train_step, custom train step, add_loss | how-to/your-code | keras.io/guides/custom_train_step_in_tensorflow
ReduceLROnPlateau, BackupAndRestore, LearningRateScheduler | how-to/keras-fit | keras.io/api/callbacks
EarlyStopping, early stopping, patience | how-to/early-stopping | keras.io/api/callbacks/early_stopping
PyDataset, tf.data, tfrecord, flow_from_directory, ImageFolder | how-to/own-dataset | keras.io/api/data_loading
training_step, validation_step, LightningModule, keras.Model | how-to/your-code | lightning.ai: LightningModule
configure_optimizers, several optimizers, multiple optimizers | how-to/your-code | lightning.ai: optimization
manual optimization, toggle_optimizer, GAN | how-to/your-code | lightning.ai: manual optimization
save_hyperparameters, hparams, constructor arguments | how-to/your-code | lightning.ai: save_hyperparameters
custom callback, LambdaCallback, custom model, custom layer | how-to/your-code | lightning.ai: callbacks
custom optimizer, Lion, Muon, Adafactor, LARS | how-to/your-code | keras.io/api/optimizers
custom loss, loss function, smoothing, mixup, your code | how-to/your-code | keras.io/api/losses
LightningDataModule, prepare_data | how-to/own-dataset | lightning.ai: LightningDataModule
ModelCheckpoint, save_top_k, save_last | how-to/checkpoint-frequency | lightning.ai: ModelCheckpoint
best model, best checkpoint, checkpoint every n minutes | how-to/checkpoint-frequency | lightning.ai: checkpointing
async checkpoint, distributed checkpoint, sharded checkpoint | concepts/checkpoints | lightning.ai: distributed checkpoint
ckpt_path, resume from checkpoint, load_from_checkpoint | how-to/time-limit | lightning.ai: Trainer.fit
LearningRateMonitor, log learning rate, learning rate scheduler, warmup | how-to/trainer-options | lightning.ai: configure_optimizers
lr scheduler, OneCycleLR, StepLR, cosine annealing, CosineDecay | how-to/trainer-options | docs.pytorch.org: torch.optim
lr finder, lr_find, Tuner, auto_lr_find | how-to/hyperparameter-search | lightning.ai: Tuner
EMA, SWA, weight averaging, use_ema, stochastic_weight_avg | how-to/trainer-options | lightning.ai: WeightAveraging
LightningCLI, trainer flags, auto_scale_batch_size | how-to/trainer-options | lightning.ai: Trainer
batch size finder, limit_train_batches, val_check_interval | how-to/trainer-options | lightning.ai: Trainer
overfit batches, sanity check, fast dev run, debug mode | how-to/trainer-options | lightning.ai: debug your model
profiler, SimpleProfiler, AdvancedProfiler, bottleneck | how-to/trainer-options | lightning.ai: profiler
breakpoint, pdb, debug, debugger, py-spy, nvidia-smi | how-to/running-job | docs.python.org/3/library/pdb
self.log, prog_bar, self.log_dict, log histogram | how-to/custom-metric | lightning.ai: logging
torchmetrics, confusion matrix, f1 score, AUROC, precision recall | how-to/custom-metric | lightning.ai: torchmetrics
CombinedLoader, multiple_trainloader_mode, drop_last | concepts/own-code | lightning.ai: CombinedLoader
DistributedSampler, use_distributed_sampler, replace_sampler_ddp | concepts/own-code | lightning.ai: Trainer
multiple dataloaders, several validation sets | how-to/several-validation-sets | lightning.ai: multiple dataloaders
FSDP, FSDP2, ZeRO, full shard, cpu offload | concepts/strategies | lightning.ai: FSDP
deepspeed, model parallel, tensor parallel, pipeline parallel | concepts/strategies | lightning.ai: strategies
multi-gpu, several GPUs, DDP, data parallel, DDPStrategy | concepts/strategies | lightning.ai: GPU training
find_unused_parameters, static_graph, unused parameters | concepts/strategies | lightning.ai: DDP optimizations
TorchScript, to_torchscript, torch.jit, tflite, quantization | how-to/use-a-trained-model | lightning.ai: deploy
onnx, savedmodel, tensorrt, serving, export model, h5 | how-to/use-a-trained-model | onnx.ai
predict_step, BasePredictionWriter, inference, predict on new files | how-to/use-a-trained-model | lightning.ai: predict
jupyter, notebook, trainer.predict, model.predict | how-to/use-a-trained-model | lightning.ai: predict
freeze layers, frozen, requires_grad, BackboneFinetuning | how-to/freeze-layers | lightning.ai: BackboneFinetuning
transfer learning, load weights, pretrained weights, strict | how-to/freeze-layers | keras.io/guides/transfer_learning
LoRA, PEFT, adapter, QLoRA, fine-tune, fine-tuning | how-to/fine-tune | huggingface.co/docs/peft
Hugging Face, transformers, from_pretrained, timm, tokenizer | how-to/fine-tune | huggingface.co/docs/transformers
LLM, llama, GPT2, BERT, push_to_hub | how-to/fine-tune | huggingface.co/docs/transformers
HF_HOME, TORCH_HOME, download weights, no internet | how-to/fine-tune | huggingface.co/docs/huggingface_hub
accelerate, hf trainer, fabric, plain pytorch, argparse | how-to/any-program | huggingface.co/docs/accelerate
any script, existing script, Ray, reinforcement learning, RL | how-to/any-program | docs.ray.io
custom dataset, DataLoader, collate_fn, sampler | how-to/own-dataset | docs.pytorch.org: torch.utils.data
WeightedRandomSampler, cross validation, k-fold, tabular | how-to/own-dataset | scikit-learn.org: cross_validation
hdf5, zarr, lmdb, numpy arrays, csv data | how-to/own-dataset | docs.h5py.org
num_workers, pin_memory, prefetch, slow dataloader | how-to/large-data | docs.pytorch.org: torch.utils.data
persistent_workers, prefetch_factor, IterableDataset | how-to/large-data | docs.pytorch.org: torch.utils.data
S3, webdataset, streaming, parquet, petastorm, MosaicML, tar files | how-to/large-data | github.com/webdataset/webdataset
TMPDIR, local_disk, node local disk, copy data to node, stage data | concepts/many-nodes | slurm.schedmd.com/sbcast
autocast, GradScaler, bf16, fp16, amp, mixed precision | how-to/accumulate-gradients | docs.pytorch.org: amp
gradient checkpointing, activation checkpointing, recompute | how-to/accumulate-gradients | docs.pytorch.org: checkpoint
torch.compile, channels_last, tf32 | how-to/accumulate-gradients | docs.pytorch.org: torch.compile
seed_everything, deterministic, reproducibility, random seed | concepts/reproducibility | lightning.ai: reproducibility
scale_lr, linear scaling rule, global batch, effective batch size | concepts/reproducibility | docs.pytorch.org: DDP
job pending, pending reason, why does my job not start | how-to/job-waits | slurm.schedmd.com/squeue
ReqNodeNotAvail, PartitionTimeLimit, BeginTime, backfill | how-to/job-waits | slurm.schedmd.com/job_reason_codes
QOSMaxGRESPerUser, AssocGrpGRES, AssocGrpCPUMinutesLimit | how-to/job-waits | slurm.schedmd.com/job_reason_codes
squeue, queue, JobHeldUser, sprio, fairshare, qos, billing, budget | how-to/job-waits | slurm.schedmd.com/squeue
wall time, walltime, requeue, TIMEOUT, USR1, time limit | how-to/time-limit | slurm.schedmd.com/sbatch
preemption, preempted, SLURMEnvironment, auto requeue | how-to/time-limit | lightning.ai: SLURM
elastic job, torch elastic, elastic training, fault tolerance | how-to/elastic-jobs | docs.pytorch.org: elastic
sbatch, SBATCH options, job script, slurm script | how-to/batch-script | slurm.schedmd.com/sbatch
salloc, srun, interactive job, interactive session | how-to/running-job | slurm.schedmd.com/salloc
job array, sbatch array, array job, submitit | how-to/hyperparameter-search | slurm.schedmd.com/job_array
dependency, afterok, singleton, job chain | how-to/chain-jobs | slurm.schedmd.com/sbatch
scancel, sacct, seff, scontrol, cancel job | how-to/monitoring | slurm.schedmd.com/scancel
log file, tail logs, stdout, progress bar, tqdm, RichProgressBar | how-to/monitoring | lightning.ai: progress bar
compare runs, delete old runs, job status, gpu utilization | how-to/monitoring | docs.wandb.ai: runs
out of memory, oom, oom-kill, NODE_FAIL | how-to/troubleshooting | slurm.schedmd.com/squeue
quota, scratch, no space left, inodes, disk space | how-to/troubleshooting | man7.org: errno
conda, mamba, venv, virtualenv, pip, uv | how-to/environments | docs.conda.io
module load, module spider, environment modules, lmod | how-to/environments | lmod.readthedocs.io
container, docker, apptainer, singularity, enroot | how-to/environments | apptainer.org/docs
shared folder, group folder, umask, permissions | how-to/environments | man7.org: umask
another cluster, move a run, rsync results | how-to/move-a-run | rsync.samba.org
ssh, port forwarding, remote submission, proxy | how-to/from-your-laptop | man.openbsd.org: ssh_config
plot, figure, paper, matplotlib, seaborn | how-to/figures | matplotlib.org
multirun, sweeper, launcher, optuna, grid search | how-to/hyperparameter-search | hydra.cc: multi-run
hyperparameter optimization, pruner, bayesian, random search | how-to/hyperparameter-search | optuna.org
defaults list, config group, override, hydra, config file | tutorials/getting-started | hydra.cc: defaults list
experiment, yaml config, custom config, config composition | tutorials/getting-started | hydra.cc: experiments
windows, WSL, mac, mps, TPU, ROCm, XPU | tutorials/getting-started | lightning.ai: accelerators
copier, cookiecutter, update template, fork | how-to/get-updates | copier.readthedocs.io
kubernetes, LSF, cloud, nemo, megatron, torchtitan, sequence parallel, context parallel | concepts/comparison | github.com/NVIDIA-NeMo/Run
hydra.run.dir, hydra.sweep.dir, chdir, outputs, log_dir, default_root_dir | reference/run-folder | hydra.cc: working directory
wandb.init, wandb sync, offline, artifact, watch | how-to/track-experiments | docs.wandb.ai
wandb sweep, W&B sweep, sweep agent, ray tune | how-to/hyperparameter-search | docs.wandb.ai: sweeps
wandb, weights and biases, mlflow, neptune, comet | how-to/track-experiments | docs.wandb.ai
WandbLogger, MLFlowLogger, CSVLogger, TensorBoardLogger | how-to/track-experiments | lightning.ai: loggers
tensorboard, SummaryWriter, add_scalar | how-to/tensorboard | tensorflow.org/tensorboard
tags, wandb group, wandb entity, log_model | how-to/track-experiments | docs.wandb.ai: wandb.init
email, mail-type, slack, notification | how-to/monitoring | slurm.schedmd.com/sbatch
bad node, drained node, node failure, ECC error, Xid | how-to/elastic-jobs | slurm.schedmd.com/sbatch
exclude, exclude nodes, stuck, deadlock, straggler, slow node, slow training | how-to/job-hangs | docs.pytorch.org: torch.distributed
gres, gpus-per-node, mem-per-cpu, cpus-per-gpu | reference/keys | slurm.schedmd.com/sbatch
NCCL, NCCL_DEBUG, NCCL timeout, Watchdog | how-to/troubleshooting | docs.pytorch.org: torch.distributed
MASTER_ADDR, MASTER_PORT, LOCAL_RANK, NODE_RANK, rdzv_endpoint, rdzv_backend | reference/environment-variables | docs.pytorch.org: torchrun
TF_CONFIG, global rank, SLURM_JOB_ID, oc.env, interpolation | reference/environment-variables | tensorflow.org: distributed training
segfault, signal 9, exit code 137, SIGKILL | reference/exit-codes | man7.org: signal
horovod, horovodrun, check-build, mpirun, torchrun | concepts/strategies | horovod.readthedocs.io
SyncBatchNorm, MirroredStrategy, MultiWorkerMirroredStrategy, TPUStrategy | concepts/strategies | lightning.ai: Trainer
augment, augmentation, transforms, normalize | how-to/own-dataset | docs.pytorch.org: torchvision.transforms
gradient clipping, gradient_clip_val, global_clipnorm, clipvalue | how-to/accumulate-gradients | keras.io/api/optimizers
instantiate, _target_, num_labels | how-to/your-code | hydra.cc: instantiate
nan loss, inf, detect anomaly, loss is nan | how-to/troubleshooting | docs.pytorch.org: detect_anomaly
"""
"""Rows of terms, the page that answers them, and where they are from. A program's own name for a key is in `other_names`."""

TERMS = [row.split(" | ") for row in TABLE.strip().splitlines()]


def find_page(term: str) -> str | None:
    """Return the page for a term, such as `how-to/figures`. None if it has none.

    Args:
        term: words or a key in any form: `class_weight`, `trainer.class-weight`, `Class weights`. Of several words, or of a variable
            such as WANDB_API_KEY, the longest term in it counts: `out of memory` in `cuda out of memory`.
    """
    pages = {plain(page.rpartition("/")[2]): page for _, page, _ in TERMS}
    pages |= {plain(one): page for terms, page, _ in TERMS for one in terms.split(", ")}
    whole = plain(term)
    inside = [one for one in pages if (" " in term or term.isupper()) and f" {one} " in f" {whole} "]
    return (
        pages.get(whole)
        or pages.get(plain(term.rpartition(".")[2]))
        or pages.get(max(inside, key=len, default=""))
    )


def plain(term: str) -> str:
    """Return the words of a term in lower case and without the `s` of a plural."""
    return " ".join(re.sub(r"(?<=\w\w\w)s$", "", word) for word in re.findall(r"[a-z0-9]+", term.lower()))
