"""Numbers that no run can have, a few of each kind: tests/config/test_schema.py has the others."""

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
    *numbers("data.batch_size", "0 1.5 nan true '' null huge", COUNT + "|at most"),
    *numbers("trainer.devices", "1.5 all ''", COUNT),
    *numbers("trainer.max_epochs", "-2 false ''", COUNT),
    *numbers("trainer.micro_batch", "0 36 97", COUNT + "|does not divide"),
    *numbers("trainer.check_val_every_n_epoch", "-1 null", COUNT + "|use a number of steps"),
    *numbers("trainer.val_check_interval", "0.0 1.5 nan null", "above 0|at most|finite|number"),
    *numbers("trainer.max_time", "0 90 12h 1:30 '' true 00:00:00 25:61:61 -1:00:00", "is not a time above 0|a time such as|is empty|minutes or seconds above 59"),
    *numbers("monitor.sample_seconds", "0 nan 1e9 true", "at least 0.1|at most|finite|number"),
    *numbers("cluster.nice", "0 2147483648", COUNT + "|at most"),
    *numbers("seed", "-1 18446744073709551616 huge ''", "negative|at most|whole number"),
    *numbers("optimizer.lr", "0 nan -inf huge true '' 1e400", "above 0|finite|number"),
    *numbers("optimizer.betas", "[0.9,1] [nan,0.9] [0.9,0.99,0.999] []", "below 1|2 items|finite"),
    Row("optimizer=sgd optimizer.nesterov=true optimizer.momentum=0", r"optimizer\.nesterov=true needs a momentum"),
    *numbers("model.hidden", "[0] [8,0]", COUNT, "model=mlp"),
    *numbers("schedule.milestones", "[nan] [a]", "finite|number", "schedule=step"),
    *numbers("trainer.limit_train_batches", "0 1.5 inf ''", "number of batches|fraction|at least 1|above 0|number"),
    *numbers("data.channels", "2 1.5", "1 or 3|1, 3|whole number", "data=imagefolder data.dir={row}"),
    *numbers("cluster.cpus_per_task", "0 ''", COUNT, "cluster=slurm"),
    *numbers("cluster.members_per_gpu", "0 1.5 4", COUNT + "|several values with -m", "cluster=slurm"),
    *numbers("cluster.members_per_node", "-1 2", COUNT + "|trainer.devices=2", "-m seed=1,2 cluster=slurm trainer.devices=2"),
    Row("data.batch_size=5000", r"data\.batch_size=5000.*1,?(437|259)", name="a batch larger than the digits"),
    Row("cluster=slurm data.batch_size=5000", r"data\.batch_size=5000.*1,?(437|259)", name="a batch larger than the digits, submitted"),
    Row("experiment=regression data.length=10 data.batch_size=20", r"data\.batch_size=20.*10", name="a batch larger than the data"),
    Row("trainer.accumulate_grad_batches=1000", r"trainer\.accumulate_grad_batches=1000", name="more accumulation than batches"),
]  # fmt: skip
