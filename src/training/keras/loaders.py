"""The batches of `fit` and `evaluate`, shared out by the strategy."""

import tensorflow as tf

from src.config.schema import Config
from src.data.base import ImageSet
from src.data.order import BatchOrder
from src.data.tf_pipeline import tf_dataset
from src.training.keras.position import Position
from src.training.keras.strategies.base import Strategy
from src.training.plan import Plan


def training_data(
    config: Config, plan: Plan, strategy: Strategy, split: ImageSet, position: Position
) -> tf.data.Dataset:
    """Endless batches from a position on; stacks of them if gradients are accumulated."""

    def of_rank(rank: int, world_size: int) -> tf.data.Dataset:
        batches = tf_dataset(
            split,
            BatchOrder(config.data.batch_size, config.seed, rank, world_size, train=True),
            workers=config.data.workers,
            start_epoch=position.epoch,
            start_batch=position.batch,
            limit_batches=plan.train_batches,
        )
        return batches if plan.accumulate == 1 else batches.batch(plan.accumulate, drop_remainder=True)

    return strategy.dataset(of_rank)


def evaluation_data(config: Config, strategy: Strategy, split: ImageSet, limit: int) -> tf.data.Dataset:
    """The first `limit` batches in their own order."""

    def of_rank(rank: int, world_size: int) -> tf.data.Dataset:
        return tf_dataset(
            split,
            BatchOrder(config.data.batch_size, config.seed, rank, world_size),
            workers=config.data.workers,
            epochs=1,
            limit_batches=limit,
        )

    return strategy.dataset(of_rank)
