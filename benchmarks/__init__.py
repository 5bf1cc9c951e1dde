"""Benchmarks: what the claims in the documentation are measured with; ``python -m benchmarks.<name>`` runs one."""
