"""Records of the operators of ONNX, and of those that onnxruntime's optimiser writes in their place."""
