"""What a checkpoint holds, and how it is saved and restored."""
