"""Strategies: how ranks and devices share the work in Keras.

choose          one device; mirrored and multiworker_mirrored, based on TensorFlow's own; creates the one that `strategy=` names
horovod         gradients are averaged by Horovod
"""
