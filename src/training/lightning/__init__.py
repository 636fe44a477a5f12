"""Training with PyTorch Lightning; `run.train` is the way in."""
