"""The rank of this process and the addresses of the others, without a framework.

discover    reads the variables that launchers set, and returns the `topology.Topology`, which everything else gets as an argument
network     names, addresses and interfaces of nodes, and the variable that TensorFlow reads
horovod     builds and initializes Horovod
layout      strategy, devices and ranks of a run; the GPUs of this machine, and the share of a member of a sweep
programs    runs the scheduler's clients, with limits of time and output
packages    checks the packages of a framework, and whether Horovod fits them
"""
