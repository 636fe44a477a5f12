"""How ranks share the work in Keras: `base` says what a strategy does, `make` turns the name of `strategy=` into one.

`tf_distribute` has mirrored and multiworker_mirrored, on TensorFlow's own strategies; `horovod` sends gradients through Horovod.
"""
