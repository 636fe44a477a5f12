"""Optimizers; the learning rate is set at each step by `src.training.schedules`."""

from collections.abc import Iterable

from torch import nn, optim

from src.config.choices import AdamW, Optimizer, Sgd


def make_optimizer(config: Optimizer, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    """The optimizer that `config` names; its learning rate is set anew at each step."""
    match config:
        case Sgd(lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=decay):
            return optim.SGD(parameters, lr, momentum=momentum, nesterov=nesterov, weight_decay=decay)
        case AdamW(lr=lr, betas=betas, eps=eps, weight_decay=decay):
            return optim.AdamW(parameters, lr, betas=(betas[0], betas[1]), eps=eps, weight_decay=decay)


def apply_settings(config: Optimizer, optimizer: optim.Optimizer) -> None:
    """Give a restored optimizer the settings of `config`, which may have changed since it was saved.

    The learning rate is left alone: it is set at each step.
    """
    settings = make_optimizer(config, [nn.Parameter()]).param_groups[0]
    for group in optimizer.param_groups:
        group.update({name: value for name, value in settings.items() if name not in ("params", "lr")})
