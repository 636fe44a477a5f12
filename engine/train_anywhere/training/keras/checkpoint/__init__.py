"""The content of a checkpoint, and how it is saved and restored.

state             every variable, bit for bit, and the state of the run; host copies of variables, written while training continues
position          progress of the run: where training resumes; seeds of the run and of each device
callback_state    attributes of Keras callbacks
"""
