"""Strategies: how ranks and devices share the work in Keras.

base            the interface, and the strategy of a single device
choose          creates the strategy that `strategy=` names; mirrored and multiworker_mirrored, based on TensorFlow's own
horovod         gradients are averaged by Horovod
"""
