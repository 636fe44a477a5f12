"""The network between the nodes of a job: host names, addresses, rank 0's socket, lost connections."""
