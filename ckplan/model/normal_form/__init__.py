"""One way to say what ONNX, its older operator sets and other domains say in several."""
