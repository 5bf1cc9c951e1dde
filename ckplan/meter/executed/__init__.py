"""The graph that onnxruntime executes: read back, simulated, and held against what was measured."""
