"""Benchmarks: what the claims in the documentation are measured with. Each is run as ``python -m benchmarks.<name>``."""
