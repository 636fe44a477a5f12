r"""Fine-tuning with frozen layers: the weights of another run, of which only the last layer is trained.

    python src/train.py framework=keras task._target_=examples.keras_model.make_model \
        data._target_=examples.keras_model.open_data
    python src/train.py framework=keras task._target_=examples.keras_frozen.make_model \
        data._target_=examples.keras_model.open_data init=results/latest

The first command trains a network. The second takes its weights (`init=` needs a run folder) and freezes all layers but the last.
If that is another one, such as for other classes, add `init.strict=false`: only weights whose shapes match are taken.
"""

import keras

from examples import keras_model


def make_model(width: int = 16) -> keras.Model:
    """Return the same network with all layers frozen but the last."""
    model = keras_model.make_model(width)
    for layer in model.layers[:-1]:
        layer.trainable = False
    return model
