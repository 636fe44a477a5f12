"""Train a model here or on a cluster: `python src/train.py --help`.

Hydra composes the configuration from configs/ and the command line. Then each process of the run, here or in a job, calls `train`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from train_anywhere.training.order import Training


def train(run: "Training") -> None:
    """Train the model of `task=` on the data of `data=`, and test it."""
    # Lightning's Trainer, or the strategy of Keras, with all ranks connected
    trainer = run.make_trainer()
    # the splits or loaders of `data=`
    data = run.open_data()
    # a LightningModule or a compiled keras.Model, with the network, optimizer and schedule of the configuration
    model = run.make_model(data)
    # from the newest checkpoint; a loop of your own can stand here: docs/how-to/own-loop.md
    run.fit(trainer, model, data)
    run.test(trainer, model, data)


if __name__ == "__main__":
    __import__("sys").path.insert(0, __import__("os").path.realpath(f"{__file__}/../.."))
    __import__("src").main("train")
