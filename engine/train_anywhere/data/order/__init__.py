"""Which samples a rank reads in which batch, and in which order: pure functions, the same for both frameworks."""
