"""Checkpoints, written to the node's disk and then to the run folder, of any framework.

The steps of a save:

1. A checkpoint is due: by `features.observers`, or at the end of an epoch, at the end of the run, or after a signal.
2. The training thread waits until the buffers are free and copies its state into them (`checkpointer.wait`).
3. `checkpointer.save` submits the buffers with a `CheckpointInfo`, and training continues.
4. A thread (`checkpointer`) writes them to a hidden folder on the node's disk (`disk.staging`), with file sizes in its manifest, and
   renames it. The buffers are free again, and a crash of the training no longer loses this state.
5. The worker copies the files to a hidden folder in the run folder (`store`), computes checksums on the way (`disk.manifest`) and
   flushes them.
6. One rename gives the folder its final name, so a folder with a final name is complete.
7. All files are read back from the disk and their checksums are compared.
8. Only then the pointers are rewritten, and older checkpoints are removed by the rule of `disk.staging`, in the run folder
   and on the node's disk.

`recovery` opens the checkpointer of a new or resumed run, and publishes checkpoints that a killed run left on the node's disk. `store`
refuses a run that has lost all its checkpoints. `choice` picks a checkpoint to read, and selects the weights of another run
(`init=RUN`).
"""
