"""Forward ONNX models of well-known architectures, written from numpy and onnx alone.

They stand in for what exporters produce: true to the papers' layer shapes, a symbolic ``batch`` dimension, weights as
initializers, names of nodes and parameters as a PyTorch export has them, but seeded random weights, so that nothing
has to be downloaded. `python -m sample_models.generate --help` writes any of them at any size; the small ``*.onnx``
files beside this page are made by `python -m sample_models.generate --all-small`.
"""
