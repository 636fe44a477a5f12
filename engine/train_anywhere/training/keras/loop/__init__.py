"""The training loop: epochs, steps and the work between them."""
