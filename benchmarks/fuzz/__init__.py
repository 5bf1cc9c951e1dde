"""Hostile and damaged files: mutants of all kinds of files through all commands; ``python -m benchmarks.fuzz``."""
