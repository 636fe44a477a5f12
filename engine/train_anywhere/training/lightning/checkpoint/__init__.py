"""Save and restore checkpoints.

state                       when a checkpoint is saved, and what it holds
buffers                     the values that a checkpoint may hold; copies of the state on the host, written while training continues
position                    where training resumes
random_state, rank_state    state of each rank: random numbers, and metrics within an epoch
restorer                    reads a checkpoint for training or a test
stored_weights              reads the weights of a checkpoint in one process
shards, shard_*             sharded training: each rank writes its part
"""
