"""Training a small network on a small real task with nothing but an ONNX file and onnxruntime."""
