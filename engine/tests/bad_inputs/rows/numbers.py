"""Numbers that no run can have: out of range, not finite, of the wrong kind."""

from engine.tests.bad_inputs.row import Row

HUGE = "1" + "0" * 400


def numbers(key: str, values: str, says: str, around: str = "") -> list[Row]:
    """Return a row for each of `values`. `says` follows the key in the message."""
    plain = key.replace(".", r"\.")
    return [
        Row(
            f"{around} {key}={HUGE if v == 'huge' else v}".strip(),
            rf"{plain}(\[\d\])?='?.*({says})",
            name=f"{around} {key}=10**400".strip() if v == "huge" else "",
        )
        for v in values.split()
    ]


COUNT = "at least 1|whole number"
ROWS = [
    *numbers("data.batch_size", "0 -1 1.5 nan true '' null huge", COUNT + "|at most"),
    *numbers("trainer.nodes", "0 -1 1.5 inf true ''", COUNT + "|is empty"),
    *numbers("trainer.devices", "0 -1 1.5 all -2 ''", COUNT),
    *numbers("trainer.total_devices", "0 -1 2.5", COUNT),
    *numbers("trainer.max_epochs", "0 -2 1.5 nan false null ''", COUNT),
    *numbers("trainer.max_steps", "0 -1 1.5 nan", COUNT),
    *numbers("trainer.accumulate_grad_batches", "0 -1 0.5", COUNT),
    *numbers("trainer.micro_batch", "0 -1 1.5 36 97", COUNT + "|does not divide"),
    *numbers("trainer.check_val_every_n_epoch", "0 -1 null", COUNT + "|use a number of steps"),
    *numbers("trainer.val_check_interval", "0 -1 0.0 1.5 nan true '' null", "at least 1|above 0|at most|finite|number"),
    *numbers("trainer.num_sanity_val_steps", "-2 1.5 null", "at least -1|whole number"),
    *numbers("trainer.max_time", "0 90 12h 1:30 '' true 00:00:00 25:61:61 -1:00:00", "is not a time above 0|a time such as|is empty|minutes or seconds above 59"),
    *numbers("trainer.log_every_n_steps", "0 -1 1e3", COUNT),
    *numbers("checkpoint.every_n_epochs", "0 -1", COUNT),
    *numbers("checkpoint.every_n_steps", "0 -1 1.5", COUNT),
    *numbers("checkpoint.keep_last", "0 -1 null", COUNT),
    *numbers("checkpoint.keep_every_n_epochs", "0 -1 1.5", COUNT),
    *numbers("checkpoint.every_n_seconds", "0 -1 nan inf ''", "above 0|finite|number"),
    *numbers("monitor.sample_seconds", "0 -1 nan 1e9 true", "at least 0.1|at most|finite|number"),
    *numbers("monitor.hang_minutes", "0 -1 nan inf", "above 0|finite|number"),
    *numbers("cluster.nice", "0 -5 1.5 2147483648 true", COUNT + "|at most"),
    *numbers("cluster.max_gpu_hours", "0 -1 nan inf ''", "above 0|finite|number"),
    *numbers("data.workers", "-1 1.5 null", "negative|at least 0|whole number"),
    *numbers("seed", "-1 1.5 nan 4294967296 18446744073709551616 huge true ''", "negative|at least 0|at most|below|whole number"),
    *numbers("optimizer.lr", "0 -0.1 nan inf -inf huge true '' null 1e400", "above 0|finite|number"),
    *numbers("optimizer.weight_decay", "-0.1 nan inf huge", "negative|at least 0|finite|number"),
    *numbers("optimizer.eps", "0 -1e-8 nan inf", "above 0|negative|at least 0|finite|number"),
    *numbers("optimizer.betas", "[0.9,1] [1.5,0.9] [-0.1,0.9] [nan,0.9] [0.9,inf] [0.9,0.99,0.999] []", "between 0 and 1|below 1|two numbers|2 items|negative|finite"),
    *numbers("optimizer.momentum", "-0.1 1 1.5 nan inf", "between 0 and 1|below 1|negative|at least 0|finite|number", "optimizer=sgd"),
    Row("optimizer=sgd optimizer.nesterov=true optimizer.momentum=0", r"optimizer\.nesterov=true needs a momentum"),
    *numbers("model.dropout", "-0.1 1.5 nan inf 1 huge", "between 0 and 1|below 1|at most|negative|at least 0|finite|number"),
    *numbers("model.width", "0 -1 1.5 null", COUNT),
    *numbers("model.hidden", "[0] [-8] [8,0]", COUNT, "model=mlp"),
    *numbers("schedule.warmup_epochs", "-1 nan inf -inf", "negative|at least 0|finite|number"),
    *numbers("schedule.final", "-0.1 nan inf", "negative|at least 0|between 0 and 1|finite|number"),
    *numbers("schedule.gamma", "-1 nan inf", "above 0|negative|at least 0|finite|number", "schedule=step"),
    *numbers("schedule.milestones", "[nan] [inf] [-1] [a]", "negative|at least 0|above 0|finite|number", "schedule=step"),
    *numbers("trainer.limit_train_batches", "0 0.0 -1 1.5 nan inf ''", "number of batches|fraction|at least 1|above 0|number"),
    *numbers("trainer.limit_val_batches", "-1 -0.5 1.5 nan", "number of batches|fraction|number"),
    *numbers("trainer.limit_test_batches", "-1 2.5 inf", "number of batches|fraction|number"),
    *numbers("trainer.gradient_clip_val", "0 -1 nan inf true", "above 0|finite|number"),
    *numbers("trainer.early_stopping.patience", "-1 1.5", "at least|negative|whole number"),
    *numbers("trainer.early_stopping.min_delta", "-1 nan inf ''", "negative|at least 0|finite|number"),
    *(r for key in ("height", "width", "channels", "classes", "length", "val_length")
      for r in numbers(f"data.{key}", "0 -1 1.5", COUNT, "data=synthetic")),
    *numbers("data.image_size", "0 -1 1.5", COUNT, "data=imagefolder data.dir={row}"),
    *numbers("data.channels", "0 2 4 1.5", "1 or 3|1, 3|whole number", "data=imagefolder data.dir={row}"),
    *numbers("cluster.cpus_per_task", "0 -4 1.5 ''", COUNT, "cluster=slurm"),
    *numbers("cluster.signal_seconds", "-5 1.5 nan", "negative|at least|whole number", "cluster=slurm"),
    *numbers("cluster.chain", "0 -1 1.5", COUNT, "cluster=slurm"),
    *numbers("cluster.members_per_gpu", "0 1.5 4", COUNT + "|several values with -m", "cluster=slurm"),
    *numbers("cluster.members_per_node", "-1 2", COUNT + "|trainer.devices=2", "-m seed=1,2 cluster=slurm trainer.devices=2"),
    *numbers("cluster.max_running", "0 -1 1.5", COUNT, "cluster=slurm"),
    *numbers("cluster.site.max_gpus", "0 -1", COUNT, "cluster=slurm"),
    Row("data.batch_size=5000", r"data\.batch_size=5000.*1,?(437|259)", name="a batch larger than the digits"),
    Row("cluster=slurm data.batch_size=5000", r"data\.batch_size=5000.*1,?(437|259)", name="a batch larger than the digits, submitted"),
    Row("experiment=regression data.length=10 data.batch_size=20", r"data\.batch_size=20.*10", name="a batch larger than the data"),
    Row("trainer.accumulate_grad_batches=1000", r"trainer\.accumulate_grad_batches=1000", name="more accumulation than batches"),
]  # fmt: skip
