"""`monitor.sample_seconds`: sample CPUs, memory and GPUs of a node."""
