"""What a checkpoint holds, and how it is saved and restored.

state                   when a checkpoint is saved, and what is in it; `plain` says what may be
buffers                 host copies, written while training continues
position                where training resumes; `random_state` and `rank_state` of each rank
restoring               reads a checkpoint, numbers only; `read_weights` for one process
shards, shard_*         sharded training: each rank writes its part
"""
