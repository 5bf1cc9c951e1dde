"""The arena of a process: what a file asks of it, what it holds, and pools in which a run finds room."""
