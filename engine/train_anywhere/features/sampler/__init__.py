"""`monitor.sample_seconds`: sample CPUs, memory, disks, network and GPUs of a node."""
