"""A loop of its own in TensorFlow, over the workers of MultiWorkerMirroredStrategy; checkpoints by tf.train.Checkpoint.

python src/run.py trainer.devices=2 trainer.accelerator=cpu -- examples/programs/tf_loop.py
"""

import argparse
import os
import time
from pathlib import Path

import tensorflow as tf

from train_anywhere.program import log

parser = argparse.ArgumentParser()
parser.add_argument("--max_steps", type=int, default=40)
parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes longer")


def main() -> None:
    """Fit a line, with a checkpoint every 5 steps."""
    options = parser.parse_args()
    if gpus := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices(gpus[int(os.environ.get("LOCAL_RANK", "0")) % len(gpus)], "GPU")
    several = "TF_CONFIG" in os.environ
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if several else tf.distribute.get_strategy()
    rank, count = int(os.environ.get("RANK", "0")), strategy.num_replicas_in_sync
    with strategy.scope():
        weight, bias, step = tf.Variable(0.0), tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(weight=weight, bias=bias, step=step)
    if newest := tf.train.latest_checkpoint(os.environ.get("TRAIN_PERSISTENT_CHECKPOINTS", ".")):
        checkpoint.restore(newest)
    print(f"rank {rank} starts at step {step.numpy()}", flush=True)

    def replica_step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((weight * x + bias - 2 * x - 1) ** 2) / count
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, tape.gradient(loss, [weight, bias]))
        weight.assign_sub(0.1 * gradients[0])
        bias.assign_sub(0.1 * gradients[1])
        return context.all_reduce(tf.distribute.ReduceOp.SUM, loss)

    @tf.function
    def train_step(x: tf.Tensor) -> tf.Tensor:
        return strategy.experimental_local_results(strategy.run(replica_step, args=(x,)))[0]

    # all workers must save; only the files of the first one count
    folder = Path(os.environ.get("TRAIN_LOCAL_CHECKPOINTS", "."), f"worker-{rank}" if rank else "")
    manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=2)
    while step.numpy() < options.max_steps:
        x = tf.random.stateless_uniform([16], seed=[int(step.numpy()), rank])
        loss = train_step(x)
        step.assign_add(1)
        time.sleep(options.pause)
        log(int(step.numpy()), loss=loss)
        if step.numpy() % 5 == 0:
            manager.save(step)
    print(f"rank {rank}: weight {weight.numpy():.6f} after {step.numpy()} steps", flush=True)


if __name__ == "__main__":
    main()
