"""Which rank this is, and where the others are; found before any framework is imported.

launcher_env     variables that launchers set
discover         the launcher, and a `topology.Topology`, which everything else gets as an argument
framework_env    the topology for Horovod; `tf_config` for TensorFlow
network          names, addresses and interfaces of nodes
horovod          build, check and initialize Horovod
layout           strategy, devices and ranks of a run; `devices` counts GPUs
programs         calls of the scheduler's clients, with limits
"""
