"""Benchmarks: what the claims in the documentation are measured with; ``python -m benchmarks.<name>`` runs one."""

import ckplan  # noqa: F401 -- turns onnxruntime's telemetry off, whichever module loads onnxruntime first
