"""What is counted with Keras."""

STRATEGIES = ("multiworker_mirrored", "horovod")
