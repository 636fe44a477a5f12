"""Sum over the workers of TensorFlow's MultiWorkerMirroredStrategy, which reads TF_CONFIG. Each worker has one GPU.

python src/run.py cluster=alvis trainer.nodes=2 -- examples/programs/tf_workers.py
"""

import os

import tensorflow as tf

if gpus := tf.config.list_physical_devices(
    "GPU"
):  # a process sees all GPUs of its node, and would take them all
    tf.config.set_visible_devices(gpus[int(os.environ.get("LOCAL_RANK", 0)) % len(gpus)], "GPU")
strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before any other operation
context = tf.distribute.get_replica_context


@tf.function
def count() -> tf.Tensor:
    """Return the number of replicas, counted by all of them."""
    return strategy.run(lambda: context().all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0)))


found = strategy.experimental_local_results(count())[0]
print(f"workers counted: {int(found)} of {strategy.num_replicas_in_sync}", flush=True)
