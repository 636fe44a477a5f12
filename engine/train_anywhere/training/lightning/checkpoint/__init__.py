"""Save and restore checkpoints.

state                       when a checkpoint is saved, and what it holds
buffers                     the values that a checkpoint may hold; copies of the state on the host, written while training continues
position                    where training resumes
rank_state                  random numbers and metrics of each rank within an epoch
restorer                    reads the weights of a checkpoint in one process; errors at a damaged checkpoint
shards                      sharded training: each rank writes its part, and reads parts without running code from them
"""
