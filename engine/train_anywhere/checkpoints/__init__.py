"""Checkpoints: the node's own disk first, then the run folder; the same for both frameworks, which this package does not know.

One save, in order:

1. `features.interval` says that a checkpoint is due (or the loop does: end of an epoch, of the run, a signal).
2. The training thread waits until the buffers are free and copies its state into them (`checkpointer.wait`).
3. `checkpointer.save` submits the buffers with a `CheckpointInfo`, and training continues.
4. The worker thread (`writer`) writes them to the node's disk (`disk.staging`): a hidden folder with sizes in its manifest, then one
   rename. The buffers are free, and a crash of the training loses nothing.
5. The worker copies the files to a hidden folder in the run folder (`store`), checksums them on the way (`disk.manifest`) and
   flushes them.
6. One rename gives the folder its final name: what has that name is complete.
7. All of it is read back from the disk and its checksums are compared.
8. Only then the pointers and the index are renewed, and older checkpoints are removed as `retention` says, in the run folder
   and on the node's disk.

`disk.event_files` syncs TensorBoard's files over the same two disks. `recovery` opens the checkpointer of a new or resumed run, and
publishes what a killed one left on the node's disk. `usable` refuses a run that has lost all its checkpoints. `choice` picks a
checkpoint to read; `init_run` reads the weights of another run (`init=RUN`).
"""
