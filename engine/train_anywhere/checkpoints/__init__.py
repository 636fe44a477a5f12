"""Checkpoints, written to the node's disk and then to the run folder, of any framework.

The training thread copies its state into buffers (after `checkpointer.wait`), submits them with `checkpointer.save`, and continues. A
thread writes them to a hidden folder on the node's disk and renames it (`store.Staging`): the buffers are free, and a crash no longer loses
this state. Then it copies the files to a hidden folder in the run folder (`store`), computes checksums on the way (`disk.manifest`),
flushes the files, reads them back, and renames the folder: one with a final name is complete. Only then the pointers are rewritten, and
older checkpoints are removed by `store.Retention`, in the run folder and on the node's disk.

`recovery` opens the checkpointer of a new or resumed run, and publishes checkpoints that a killed run left on the node's disk. `store`
refuses a run that has lost all its checkpoints. `choice` picks a checkpoint to read, and selects the weights of another run
(`init=RUN`).
"""
