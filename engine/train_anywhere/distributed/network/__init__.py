"""The network between the nodes of a job: host names, addresses, listening sockets, lost connections."""
