r"""Fine-tuning with frozen layers: the weights of another run, of which only the last layer is trained.

    python src/train.py task._target_=examples.lightning_module.LitDigits \
        data._target_=examples.lightning_module.DigitsData
    python src/train.py task._target_=examples.lightning_frozen.FineTuned \
        data._target_=examples.lightning_module.DigitsData init=results/latest

The first command trains a network. The second takes its weights (`init=` needs a run folder) and freezes the first layer.
If the head is another one, such as for other classes, add `init.strict=false`: only weights whose shapes match are taken.
"""

from examples.lightning_module import LitDigits


class FineTuned(LitDigits):
    """The same network. Only parameters that require gradients are trained, by any optimizer."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__(hidden)
        self.net[1].requires_grad_(False)
