"""The meters of memory, and runs within an arena of so many bytes."""
