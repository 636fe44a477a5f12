"""The loop over training steps, and the callbacks around it."""
