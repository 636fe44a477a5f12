"""The network between the nodes of a job."""
