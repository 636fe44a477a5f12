"""Horovod: initialize it without MPI."""
