"""The loop over the steps, and what happens around a step."""
