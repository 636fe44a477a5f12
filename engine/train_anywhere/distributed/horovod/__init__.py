"""Horovod: build and install it, check the installation, and initialize it without MPI."""
