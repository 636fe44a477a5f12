"""`data.stage=true`: copy the data set to each node's own disk."""
