"""Fine-tuning on small weights that the examples make themselves: docs/how-to/fine-tune.md."""
