"""What a checkpoint holds, and how it is saved and restored.

state             every variable, bit for bit, and where the run stands
buffers           host copies, written while training continues
position          where training resumes; `random_state`, and the state of callbacks in `callback_state`
"""
