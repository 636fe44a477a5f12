"""The order of samples and their assignment to batches and ranks: pure functions, the same for both frameworks."""
