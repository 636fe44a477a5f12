"""What is counted with Lightning."""

STRATEGIES = ("ddp", "fsdp", "horovod")
