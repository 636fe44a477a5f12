"""The rank of this process and the addresses of the others, known before any framework is imported.

launcher_env     reads the variables that launchers set
discover         returns the `topology.Topology`, which everything else gets as an argument
tf_config        passes the topology to TensorFlow; `horovod.rank_variables` does so for Horovod
network          names, addresses and interfaces of nodes
horovod          builds, checks and initializes Horovod
layout           strategy, devices and ranks of a run; `devices` counts GPUs
programs         runs the scheduler's clients, with limits of time and output
packages         finds missing packages of a framework
"""
