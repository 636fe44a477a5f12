"""Programs of users, drawn from a seed: the spec, and the Python file that it stands for."""

from collections.abc import Iterator
from typing import Any

from lightning.pytorch.trainer.connectors.logger_connector.fx_validator import _FxValidator

from engine.tests.differential.draws import Draws, Spec

BATCH = ("batch", "batch_idx")
EVAL = (*BATCH, "dataloader_idx=0")
STAGES = ("train", "validation", "test", "predict")
HOOKS: dict[str, tuple[str, ...]] = {
    **{f"on_{stage}_{place}": () for stage in STAGES for place in ("start", "end", "epoch_start", "epoch_end")},
    "on_fit_start": (), "on_fit_end": (),
    "setup": ("stage",), "teardown": ("stage",),
    "on_train_batch_start": BATCH, "on_train_batch_end": ("outputs", *BATCH),
    **{f"on_{stage}_batch_start": EVAL for stage in STAGES[1:]},
    **{f"on_{stage}_batch_end": ("outputs", *EVAL) for stage in STAGES[1:]},
    "on_before_zero_grad": ("optimizer",), "on_before_backward": ("loss",), "on_after_backward": (),
    "on_before_optimizer_step": ("optimizer",),
    "on_save_checkpoint": ("checkpoint",), "on_load_checkpoint": ("checkpoint",),
}  # fmt: skip
"""Hooks of modules and callbacks, with their arguments."""

CALLBACK = {**HOOKS, "on_sanity_check_start": (), "on_sanity_check_end": (), "on_exception": ("exception",),
            "state_dict": (), "load_state_dict": ("state_dict",)}  # fmt: skip
DATA = {
    "prepare_data": (), "on_before_batch_transfer": ("batch", "dataloader_idx"),
    "transfer_batch_to_device": ("batch", "device", "dataloader_idx"),
    "on_after_batch_transfer": ("batch", "dataloader_idx"),
}  # fmt: skip
MODULE = {
    **HOOKS, **DATA, "configure_model": (), "configure_callbacks": (), "forward": ("x",), "backward": ("loss",),
    "optimizer_step": ("epoch", "batch_idx", "optimizer", "optimizer_closure=None"),
    "optimizer_zero_grad": ("epoch", "batch_idx", "optimizer"), "lr_scheduler_step": ("scheduler", "metric"),
    "configure_gradient_clipping": ("optimizer", "gradient_clip_val=None", "gradient_clip_algorithm=None"),
    "on_validation_model_eval": (), "on_validation_model_train": (), "on_test_model_eval": (),
    "on_test_model_train": (), "on_validation_model_zero_grad": (),
}  # fmt: skip
DATAMODULE = {**DATA, "setup": ("stage",), "teardown": ("stage",), "state_dict": (),
              "load_state_dict": ("state_dict",), "on_exception": ("exception",)}  # fmt: skip

BODIES = {
    "forward": "return self.net(x)",
    "backward": "loss.backward()",
    "optimizer_step": "super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)",
    "optimizer_zero_grad": "optimizer.zero_grad()",
    "lr_scheduler_step": "super().lr_scheduler_step(scheduler, metric)",
    "configure_gradient_clipping":
        "self.clip_gradients(optimizer, gradient_clip_val=gradient_clip_val, "
        "gradient_clip_algorithm=gradient_clip_algorithm)",
    "transfer_batch_to_device": "return super().transfer_batch_to_device(batch, device, dataloader_idx)",
    "on_before_batch_transfer": "return batch",
    "on_after_batch_transfer": "return batch",
    "on_validation_model_eval": "super().on_validation_model_eval()",
    "on_validation_model_train": "super().on_validation_model_train()",
    "on_validation_model_zero_grad": "super().on_validation_model_zero_grad()",
    "on_test_model_eval": "super().on_test_model_eval()",
    "on_test_model_train": "super().on_test_model_train()",
    "configure_callbacks": "return Own()",
    "on_save_checkpoint": "checkpoint[f'own {type(self).__name__}'] = self.count",
    "on_load_checkpoint": "self.count = checkpoint.get(f'own {type(self).__name__}', 0)",
    "state_dict": "return {'count': self.count}",
    "load_state_dict": "self.count = state_dict.get('count', 0)",
}  # fmt: skip
"""What hooks do besides recording their call."""

SHORT = {"batch": "b", "batch_idx": "i", "dataloader_idx=0": "which=0", "outputs": "o", "optimizer": "opt",
         "loss": "l", "checkpoint": "saved", "trainer": "t", "pl_module": "net"}  # fmt: skip
NAMES = ("width", "lr", "config", "seed", "target", "kwargs", "framework", "path", "stage", "device")
MODES = ("max_size_cycle", "min_size", "max_size")
KINDS = (
    "map", "shuffle", "sampler", "batch_sampler", "iterable", "own_iter", "own_len", "stateful", "batches",
)  # fmt: skip
OPTIONS: dict[str, tuple[Any, ...]] = {
    "max_steps": (1, 3, 5), "limit_train_batches": (1, 2, 3, 0.5), "limit_val_batches": (0, 1, 2, 0.5),
    "limit_test_batches": (0, 1, 2, 0.5), "check_val_every_n_epoch": (2,), "num_sanity_val_steps": (1, 2, -1),
    "val_check_interval": (2, 0.5, 0.25), "overfit_batches": (1, 2),
}  # fmt: skip
AUTOMATIC: dict[str, tuple[Any, ...]] = {"accumulate_grad_batches": (2, 3), "gradient_clip_val": (0.1, 1.0)}
"""Arguments of the Trainer that Lightning refuses with manual optimization."""
LOG = ("on_step", "on_epoch", "prog_bar", "logger", "sync_dist", "add_dataloader_idx", "rank_zero_only", "enable_graph",
       "reduce_fx", "metric_attribute", "batch_size", "log_dict")  # fmt: skip
EXTRAS = ("random", "metrics", "trainer", "logger")
SAVES = ("on_save_checkpoint", "state_dict")
LOGGED = {
    name: rules for name, rules in _FxValidator.functions.items() if rules and name in {**MODULE, "step": 1}
}
STEPS = {
    f"{stage}_step": _FxValidator.functions[f"{stage}_step"] for stage in ("training", "validation", "test")
}

CHOICES = (
    "pytorch_lightning", "arguments=short", "arguments=args", "manual", "dropout", "batch_norm", "validation", "test", "returns=dict",
    "returns=none", "frequency", "form=list", "form=pair", "schedule=step", "noise", "schedule=lambda", "schedule=plateau",
    "interval=step", "interval=epoch", "drop_last", "where=module", "where=plain", "where=datamodule", "as=dict", "as=list",
    "as=combined", "accumulate", "stop", "logger=csv", "logger=none",
)  # fmt: skip
DRAWN = sorted({
    *MODULE, *CALLBACK, *DATAMODULE, *LOG, *OPTIONS, *AUTOMATIC, *CHOICES, *NAMES,
    *(f"kind={kind}" for kind in KINDS), *(f"mode={mode}" for mode in MODES),
} - {"forward"})  # fmt: skip
"""What the long form draws often enough."""


STATES = {
    "number": ("self.state = 0.0", "self.state += 0.1", "self.state"),
    "list": ("self.state = []", "self.state.append(len(self.state))", "sum(self.state) / 9"),
    "deque": ("self.state = deque(maxlen=3)", "self.state.append(x.detach().mean())", "sum(self.state).abs()"),
    "dict": ("self.state = {'a': {1, 2}}", "self.state['a'].add(batches(self))", "len(self.state['a']) / 9"),
    "generator": ("self.state = np.random.default_rng(1)", "", "self.state.random()"),
    "buffer": ("self.register_buffer('state', torch.zeros(1), persistent=False)", "self.state += 0.1", "self.state.mean()"),
    "object": ("self.state = Kept()", "self.state.inner.count += 1", "self.state.inner.count / 9"),
    "layer": ("self.state = [nn.Linear(4, 1)]", "self.state[0].weight.data += 0.1", "self.state[0].weight.mean().abs()"),
    "optimizer": ("self.state = Moving()", "self.state.step()", "self.state.values[0].abs().mean().item()"),
}  # fmt: skip
"""State in attributes of a module that no state_dict holds: how it is made, how a step changes it, and the factor of the loss."""


def draw_state(seed: int) -> str | None:
    """Return the state of half of the programs, by a generator of its own: other draws stay the same."""
    draws = Draws(f"state {seed}")
    return draws.choice([*STATES]) if draws.maybe(0.5) else None


def draw_program(seed: int, ranks: int = 1) -> Spec:
    """Return the program of a seed."""
    draws = Draws(seed)
    calm = draws.maybe(0.4)  # no random numbers, so that other differences are visible
    spec: Spec = {"seed": seed}
    if draws.maybe(0.15):
        spec["pytorch_lightning"] = True
    if style := draws.choice(("", "", "short", "args")):
        spec["arguments"] = style
    spec["constructor"] = draws.sample(NAMES, draws.randint(0, 2))
    several = draws.maybe(0.2)
    spec["module"] = draw_module(draws, calm)
    spec["data"] = draw_data(draws, calm, several)
    spec["callbacks"] = [
        {
            "hooks": draw_hooks(draws, CALLBACK, draws.choice((0.1, 0.3)), calm),
            "log": draw_logs(draws, LOGGED, 1),
        }
        for _ in range(draws.choice((0, 1, 1, 2)))
    ]
    spec["trainer"] = without_fractions(draw_trainer(draws, spec), spec["data"])
    if ranks > 1:
        evaluate_all_rows(draws, spec)
        fit_ranks(spec)
    if draws.maybe(0.1) and not spec["module"].get("manual"):
        spec["accumulate"] = {"1": 2}
        spec["trainer"].pop("accumulate_grad_batches", None)
    if draws.maybe(0.1):
        spec["stop"] = {"how": draws.choice(("should_stop", "-1")), "epoch": draws.choice((0, 1)),
                        "batch": draws.randint(0, 2)}  # fmt: skip
    if draws.maybe(0.3):
        spec["logger"] = draws.choice(("csv", "none"))
    if state := draw_state(seed):
        spec["module"]["state"] = state
    if seed >= LATER:
        spec["trainer"] |= draw_late_options(Draws(seed + 1))
        spec["trainer"] |= {"use_distributed_sampler": False} if ranks > 1 and seed % 2 else {}
    return spec


LATER = 200_000
"""From this seed on, programs also have the options of `draw_late_options`."""


def draw_late_options(draws: Draws) -> Spec:
    """Return options that were added when the programs of the first seeds were known."""
    options: Spec = {"min_steps": draws.choice((1, 4)), "min_epochs": draws.choice((2, 4)),
                     "reload_dataloaders_every_n_epochs": draws.choice((1, 2))}  # fmt: skip
    chosen = {name: options[name] for name in draws.subset([*options], 0.5)}
    return chosen | ({"max_epochs": -1, "max_steps": draws.randint(3, 9)} if draws.maybe(0.3) else {})


def fit_ranks(spec: Spec) -> None:
    """Leave out what plain Lightning refuses or waits for endlessly on several ranks."""
    spec["module"]["returns"] = "tensor"  # a rank without a loss lets the others wait
    spec["module"]["synced"] = True  # Lightning's schedules would watch the loss of rank 0
    for loader in spec["data"]["train"]:
        loader["kind"] = "map" if loader["kind"] == "batch_sampler" else loader["kind"]
    for hooks in (spec["module"]["hooks"], spec["data"].get("hooks", {})):
        if (
            hooks.get("prepare_data") == "trainer"
        ):  # of rank 0 only, and `estimated_stepping_batches` opens loaders
            hooks["prepare_data"] = ""


def evaluate_all_rows(draws: Draws, spec: Spec) -> None:
    """Make a program log means over all rows of its evaluations, which are the same on one rank."""
    for split, stage in (("val", "validation"), ("test", "test")):
        for loader in spec["data"][split]:
            loader.pop("drop_last", None)
            loader["kind"] = draws.choice(("map", "own_iter"))
        for limit in (f"limit_{split}_batches", "overfit_batches"):
            spec["trainer"].pop(limit, None)
        spec["module"]["log"].append({"hook": f"{stage}_step", "value": "ids", "name": f"mean_{split}",
                                      "sync_dist": draws.maybe(0.5)})  # fmt: skip


def draw_hooks(
    draws: Draws, hooks: dict[str, tuple[str, ...]], probability: float, calm: bool
) -> dict[str, str]:
    """Return a subset of the hooks and what each one reads besides its arguments.

    Hooks of a save draw no random numbers: with this project they do not change those of the training.
    """
    return {
        name: draws.choice(EXTRAS[calm or name in SAVES :]) if draws.maybe(0.4) else ""
        for name in draws.subset(list(hooks), probability)
    }


def draw_module(draws: Draws, calm: bool) -> Spec:
    """Return a LightningModule."""
    manual = draws.maybe(0.15)
    module: Spec = {
        "hooks": draw_hooks(draws, MODULE, draws.choice((0.05, 0.2, 0.5)), calm),
        "returns": draws.choice(("tensor", "dict", "none")),
        "step_arguments": draws.choice((1, 2, 2, 2)),
        "optimizers": [draw_optimizer(draws) for _ in range(draws.randint(1, 2) if manual else 1)],
        "log": draw_logs(draws, {**STEPS, **LOGGED}, draws.randint(0, 4)),
    }
    if manual:
        module["manual"] = True
    if not calm and draws.maybe(0.5):
        module["dropout"] = True
    if draws.maybe(0.2):
        module["batch_norm"] = True
    for stage in ("validation", "test"):
        if draws.maybe(0.9):
            module[stage] = True
    return module


def draw_optimizer(draws: Draws) -> Spec:
    """Return an optimizer, with or without a schedule."""
    optimizer: Spec = {"kind": draws.choice(("SGD", "Adam"))}
    if draws.maybe(0.5):
        optimizer["schedule"] = draws.choice(("step", "lambda", "plateau"))
        optimizer["interval"] = (
            "epoch" if optimizer["schedule"] == "plateau" else draws.choice(("step", "epoch"))
        )
        if draws.maybe(0.4):
            optimizer["frequency"] = 2
    if draws.maybe(0.3):
        optimizer["form"] = "pair" if "schedule" in optimizer else draws.choice(("list", "pair"))
    return optimizer


def draw_logs(draws: Draws, hooks: dict[str, Any], count: int) -> list[Spec]:
    """Return calls of `self.log` that Lightning allows in their hooks."""
    logs = []
    for _ in range(count):
        hook = draws.choice([*hooks, *STEPS]) if "training_step" in hooks else draws.choice(list(hooks))
        rules, has_batch = _FxValidator.functions[hook], "batch" in hook or hook in STEPS
        log: Spec = {"hook": hook, "value": draws.choice(("ids", "ids", "loss", "number", "metric"))}
        if not has_batch or (log["value"] == "loss" and hook not in STEPS):
            log["value"] = draws.choice(("number", "metric"))
        assert rules
        step, epoch = draws.choice(rules["allowed_on_step"]), draws.choice(rules["allowed_on_epoch"])
        if step or epoch:
            log |= {"on_step": step, "on_epoch": epoch}
        for name, values in (
            ("prog_bar", (True,)), ("logger", (True, False)), ("sync_dist", (True,)), ("add_dataloader_idx", (False,)),
            ("rank_zero_only", (True,)), ("enable_graph", (True,)), ("reduce_fx", ("max", "min", "sum")),
        ):  # fmt: skip
            if draws.maybe(0.2):
                log[name] = draws.choice(values)
        if log["value"] == "metric":
            log.pop("reduce_fx", None)
            if draws.maybe(0.4):
                log["metric_attribute"] = "measure"
        if (has_batch and draws.maybe(0.4)) or not has_batch:
            log["batch_size"] = draws.randint(1, 3)
        if draws.maybe(0.2):
            log["log_dict"] = True
        logs.append(log)
    return logs


def draw_data(draws: Draws, calm: bool, several: bool) -> Spec:
    """Return the loaders, and who returns them."""
    form = draws.choice(("dict", "tuple"))

    def loader(first: int, kinds: tuple[str, ...]) -> Spec:
        found: Spec = {"kind": draws.choice(kinds), "rows": draws.randint(5, 12), "first": first,
                       "batch": draws.randint(2, 4)}  # fmt: skip
        if not calm and draws.maybe(0.3):
            found["noise"] = True
        if draws.maybe(0.3):
            found["drop_last"] = True
        return found

    kinds = tuple(k for k in KINDS if k != "shuffle") if calm else (*KINDS, "shuffle")
    fixed = ("map", "map", *(k for k in kinds if k not in ("shuffle", "sampler", "own_len")))
    data: Spec = {"where": draws.choice(("datamodule", "datamodule", "module", "plain")), "form": form}
    data["train"] = [loader(1000 * n, kinds) for n in range(draws.randint(2, 3) if several else 1)]
    if several:
        data["mode"], data["as"] = draws.choice(MODES), draws.choice(("dict", "list", "combined"))
        data["mode"] = data["mode"] if data["as"] == "combined" else MODES[0]
    data["val"] = [loader(3000 + 1000 * n, fixed) for n in range(draws.choice((0, 1, 1, 1, 2)))]
    data["test"] = [loader(6000 + 1000 * n, fixed) for n in range(draws.choice((0, 1, 1, 2)))]
    if data["where"] == "datamodule":
        data["hooks"] = draw_hooks(draws, DATAMODULE, draws.choice((0.1, 0.4)), calm)
    return data


def draw_trainer(draws: Draws, spec: Spec) -> Spec:
    """Return arguments of the Trainer, in Lightning's terms."""
    manual = spec["module"].get("manual")
    trainer: Spec = {"max_epochs": draws.randint(1, 3), "log_every_n_steps": draws.choice((1, 2, 50))}
    for name, values in {**OPTIONS, **({} if manual else AUTOMATIC)}.items():
        if draws.maybe(0.03 if name == "overfit_batches" else 0.2):
            trainer[name] = draws.choice(values)
    if "gradient_clip_val" in trainer and draws.maybe(0.4):
        trainer["gradient_clip_algorithm"] = "value"
    if trainer.get("val_check_interval") == 2:
        trainer["val_check_interval"] = trainer.get("accumulate_grad_batches", 2)
    return trainer


def without_fractions(trainer: Spec, data: Spec) -> Spec:
    """Leave out limits that Lightning refuses for loaders without a length."""
    limits = {
        "train": ("limit_train_batches", "val_check_interval"),
        "val": ("limit_val_batches",),
        "test": ("limit_test_batches",),
    }
    endless = [
        limit
        for split, names in limits.items()
        for limit in names
        if any(one["kind"] == "iterable" for one in data[split])
    ]
    return {
        name: value for name, value in trainer.items() if not (name in endless and isinstance(value, float))
    }


def render(spec: Spec) -> str:
    """Return the Python file of a program."""
    package = "pytorch_lightning" if spec.get("pytorch_lightning") else "lightning.pytorch"
    return "\n".join([
        f"import {package} as pl", "import torch", "from torch import nn", "from torchmetrics import MeanMetric", "",
        f"from {package}.callbacks import GradientAccumulationScheduler",
        f"from {package}.utilities import CombinedLoader",
        "from collections import deque", "import numpy as np",
        "from engine.tests.differential.lightning.parts import Kept, Moving, batches, ids, make_loader, seen, xy", "", "",
        *render_data(spec), *render_module(spec), *render_callbacks(spec),
    ]) + "\n"  # fmt: skip


def render_loaders(spec: Spec, split: str) -> str:
    """Return the expression for the loaders of a split."""
    data = spec.get("data", {})
    made = [
        f"make_loader({one.get('kind', 'map')!r}, {one.get('rows', 6)}, {one.get('first', 0)}, {one.get('batch', 2)}, "
        f"{one.get('noise', False)}, {data.get('form', 'dict')!r}, {one.get('drop_last', False)})"
        for one in data.get(split) or ([{}] if split == "train" else [])
    ]
    if split != "train" or "as" not in data:
        return made[0] if len(made) == 1 else f"[{', '.join(made)}]"
    inner = ", ".join(f"'{name}': {one}" for name, one in zip("abc", made, strict=False))
    mode = data.get("mode", MODES[0])
    return {"dict": f"{{{inner}}}", "list": f"[{', '.join(made)}]",
            "combined": f"CombinedLoader({{{inner}}}, {mode!r})"}[data["as"]]  # fmt: skip


def loader_methods(spec: Spec) -> Iterator[str]:
    """Yield the methods that return loaders."""
    for split in ("train", "val", "test"):
        if split == "train" or spec.get("data", {}).get(split):
            yield f"    def {split}_dataloader(self):"
            yield f"        seen(self, '{split}_dataloader')"
            yield f"        return {render_loaders(spec, split)}"
            yield ""


def render_data(spec: Spec) -> Iterator[str]:
    """Yield the data module, or the function that returns loaders."""
    data = spec.get("data", {})
    where = data.get("where", "plain")
    if where == "plain":
        yield "def data():"
        splits = [s for s in ("train", "val", "test") if s == "train" or data.get(s)]
        yield f"    return {{{', '.join(f'{s!r}: {render_loaders(spec, s)}' for s in splits)}}}"
        yield from ["", ""]
    elif where == "datamodule":
        yield "class Data(pl.LightningDataModule):"
        yield "    count = 0"
        yield ""
        yield from loader_methods(spec)
        for hook, extra in data.get("hooks", {}).items():
            yield from render_hook(spec, hook, DATAMODULE[hook], extra, [])
        yield ""


def render_module(spec: Spec) -> Iterator[str]:
    """Yield the LightningModule."""
    module, names = spec.get("module", {}), spec.get("constructor", [])
    hooks, logs, stop = module.get("hooks", {}), module.get("log", []), spec.get("stop", {})
    yield "class Net(pl.LightningModule):"
    yield f"    def __init__(self{''.join(f', {name}=8' for name in names)}):"
    yield "        super().__init__()"
    if names:
        yield f"        assert {names[0]} == 9"
    norm, dropout = (
        "nn.BatchNorm1d(8), " * bool(module.get("batch_norm")),
        "nn.Dropout(0.5), " * bool(module.get("dropout")),
    )
    yield f"        self.net = nn.Sequential(nn.Linear(4, 8), {norm}nn.Tanh(), {dropout}nn.Linear(8, 1))"
    yield "        self.measure, self.count = MeanMetric(), 0"
    if state := module.get("state"):
        yield f"        {STATES[state][0]}"
    if module.get("manual"):
        yield "        self.automatic_optimization = False"
    yield ""
    if spec.get("data", {}).get("where") == "module":
        yield from loader_methods(spec)
    yield from render_training_step(spec)
    for stage in ("validation", "test"):
        if module.get(stage):
            yield from render_eval_step(spec, stage)
    yield from render_optimizers(module)
    if stop:
        hooks = {"on_train_batch_start": "", **hooks}
    logged = {log["hook"]: "" for log in logs if log["hook"] not in STEPS and log["hook"] != "training_step"}
    for hook, extra in {"forward": "", **logged, **hooks}.items():
        yield from render_hook(spec, hook, MODULE[hook], extra, logs)


def signature(spec: Spec, arguments: tuple[str, ...], several: bool = False) -> tuple[str, list[str]]:
    """Return the parameters in the program's style, and the names of the values."""
    style = spec.get("arguments", "")
    free = [a for a in arguments if a != "stage" and "=None" not in a]
    if style == "args" and len(free) == len(arguments) > 0:
        return "*args", [f"args[{n}]" if "=" not in a else "args[-1]" for n, a in enumerate(arguments)]
    named = [
        SHORT.get(a, a) if style == "short" and not (several and "dataloader" in a) else a for a in arguments
    ]
    return ", ".join(named), [a.partition("=")[0] for a in named]


def render_hook(
    spec: Spec, hook: str, arguments: tuple[str, ...], extra: str, logs: list[Spec], callback: str = ""
) -> Iterator[str]:
    """Yield a hook that records its call, logs, and does what its name requires."""
    several = len(spec.get("data", {}).get("val", ())) > 1 or len(spec.get("data", {}).get("test", ())) > 1
    body = BODIES.get(hook, "")
    first = (
        ("trainer", "pl_module")
        if callback and "state_dict" not in hook[:10] and hook != "load_state_dict"
        else ()
    )
    parameters, values = signature(spec, first + arguments, several)
    needs = [a.partition("=")[0] for a in first + arguments]
    yield f"    def {hook}({', '.join(filter(None, ['self', parameters]))}):"
    for name, value in zip(needs, values, strict=True):
        if name in body and name != value:
            yield f"        {name} = {value}"
    yield f"        seen({', '.join(['self', repr(hook), *values])}{f', extra={extra!r}' * bool(extra)})"
    stop = spec.get("stop", {})
    if stop and hook == "on_train_batch_start" and not callback:
        index = values[1]
        yield f"        if self.current_epoch >= {stop.get('epoch', 0)} and {index} >= {stop.get('batch', 0)}:"
        yield (
            "            return -1"
            if stop.get("how") == "-1"
            else "            self.trainer.should_stop = True"
        )
    batch = values[needs.index("batch")] if "batch" in needs else ""
    for number, log in enumerate(logs):
        if log.get("hook") == hook:
            yield from render_log(log, f"{callback}{number}", batch, values[1] if callback else "self")
    if body:
        yield f"        {body}"
    yield ""


def render_log(log: Spec, name: str, batch: str, owner: str) -> Iterator[str]:
    """Yield a call of `self.log`, or `self.log_dict`."""
    value = log.get("value", "number")
    if value == "metric":
        yield f"        {owner}.measure.update({f'float(sum(ids({batch})))' if batch else '2.0'})"
    values = {
        "ids": f"float(sum(ids({batch})) / len(ids({batch})))",
        "loss": "loss",
        "metric": f"{owner}.measure",
    }
    known = {"hook", "value", "log_dict", "name"}
    name = log.get("name", f"m{name}")
    options = "".join(f", {key}={given!r}" for key, given in log.items() if key not in known)
    shown = values.get(value, "3.5")
    named = f"{{'{name}': {shown}}}" if log.get("log_dict") else f"'{name}', {shown}"
    options = options if not log.get("log_dict") else options.replace(", metric_attribute='measure'", "")
    yield f"        self.log{'_dict' * bool(log.get('log_dict'))}({named}{options})"


def render_training_step(spec: Spec) -> Iterator[str]:
    """Yield the training step."""
    module = spec.get("module", {})
    parameters, values = signature(spec, BATCH[: module.get("step_arguments", 2)])
    yield f"    def training_step(self, {parameters}):"
    yield f"        seen(self, 'training_step', {', '.join(values)})"
    yield f"        x, y = xy({values[0]})"
    yield "        loss = (self(x) - y).square().mean()"
    if state := module.get("state"):
        yield f"        {STATES[state][1]}" if STATES[state][1] else "        pass"
        yield f"        loss = loss * (1 + {STATES[state][2]})"
    if any(one.get("schedule") == "plateau" for one in module.get("optimizers", [])):
        synced = ", sync_dist=True" * bool(module.get("synced"))
        yield f"        self.log('watched', loss, on_step=False, on_epoch=True{synced})"
    for number, log in enumerate(module.get("log", [])):
        if log.get("hook") == "training_step":
            yield from render_log(log, str(number), values[0], "self")
    returns = module.get("returns", "tensor")
    if module.get("manual"):
        count = len(module.get("optimizers") or [{}])
        yield f"        for opt in {'self.optimizers()' if count > 1 else '[self.optimizers()]'}:"
        yield "            opt.zero_grad()"
        yield "            self.manual_backward((self(x) - y).square().mean())"
        yield "            opt.step()"
        if any("schedule" in o for o in module.get("optimizers", [])):
            yield "        schedulers = self.lr_schedulers()"
            yield "        for one in schedulers if isinstance(schedulers, list) else [schedulers]:"
            yield "            watched = [self.all_gather(loss.detach()).mean()]  # the same on all ranks"
            yield "            one.step(*watched * isinstance(one, torch.optim.lr_scheduler.ReduceLROnPlateau))"
        returns = "tensor" if returns == "tensor" else "nothing"
    elif returns == "none":
        yield f"        if len(x) % 2 == 0 and int(ids({values[0]})[0]) % 3 == 0:"
        yield "            return None"
    if returns != "nothing":
        yield f"        return {'dict(loss=loss, more=loss.detach())' if returns == 'dict' else 'loss'}"
    yield ""


def render_eval_step(spec: Spec, stage: str) -> Iterator[str]:
    """Yield a step of validation or test."""
    module = spec.get("module", {})
    several = len(spec.get("data", {}).get("val" if stage == "validation" else "test", ())) > 1
    count = module.get("step_arguments", 2) if not several else 3
    parameters, values = signature(spec, EVAL[:count], several)
    yield f"    def {stage}_step(self, {parameters}):"
    yield f"        seen(self, '{stage}_step', {', '.join(values)})"
    yield f"        x, y = xy({values[0]})"
    yield "        loss = (self(x) - y).square().mean()"
    for number, log in enumerate(module.get("log", [])):
        if log.get("hook") == f"{stage}_step":
            yield from render_log(log, str(number), values[0], "self")
    if module.get("returns") == "tensor":
        yield "        return loss"
    yield ""


def render_optimizers(module: Spec) -> Iterator[str]:
    """Yield `configure_optimizers`."""
    optimizers = module.get("optimizers") or [{}]
    schedules = {"step": "StepLR(opt, 2, 0.5)", "lambda": "LambdaLR(opt, lambda n: 1 / (1 + n))",
                 "plateau": "ReduceLROnPlateau(opt, patience=0, factor=0.5)"}  # fmt: skip
    yield "    def configure_optimizers(self):"
    yield "        found = []"
    for number, one in enumerate(optimizers):
        parameters = "self.net.parameters()" if len(optimizers) == 1 else f"self.net[{-number}].parameters()"
        yield f"        opt = torch.optim.{one.get('kind', 'SGD')}({parameters}, lr=0.05)"
        if schedule := one.get("schedule"):
            monitor = "'monitor': 'watched', 'strict': False, " * (schedule == "plateau")
            yield f"        schedule = torch.optim.lr_scheduler.{schedules[schedule]}"
            yield f"        found.append(dict(optimizer=opt, lr_scheduler={{'scheduler': schedule, {monitor}"
            yield f"            'interval': {one.get('interval', 'epoch')!r}, 'frequency': {one.get('frequency', 1)}}}))"
        else:
            yield "        found.append(dict(optimizer=opt))"
    form = optimizers[0].get("form", "")
    if form == "pair":
        yield "        return [f['optimizer'] for f in found], [f['lr_scheduler'] for f in found if 'lr_scheduler' in f]"
    else:
        single = "[found[0]['optimizer']]" if form == "list" else "found[0]"
        yield f"        return {'found' if len(optimizers) > 1 else single}"
    yield ""


def render_callbacks(spec: Spec) -> Iterator[str]:
    """Yield the callbacks."""
    if "configure_callbacks" in spec.get("module", {}).get("hooks", {}):
        yield from ["", "class Own(pl.Callback):", "    def on_train_end(self, trainer, pl_module):"]
        yield from ["        seen(self, 'on_train_end', trainer, pl_module)", ""]
    for number, callback in enumerate(spec.get("callbacks", [])):
        yield ""
        yield f"class Callback{number}(pl.Callback):"
        yield "    count = 0"
        yield ""
        logs = callback.get("log", [])
        names = {log["hook"]: "" for log in logs if log["hook"] in CALLBACK}
        for hook, extra in {**names, **callback.get("hooks", {})}.items():
            yield from render_hook(spec, hook, CALLBACK[hook], extra, logs, callback="ab"[number])
    if accumulate := spec.get("accumulate"):
        yield ""
        yield "def accumulate():"
        yield f"    return GradientAccumulationScheduler({ {int(k): v for k, v in accumulate.items()} })"
