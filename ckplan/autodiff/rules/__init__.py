"""Gradient rules, grouped as the ONNX operator documentation groups its operators."""
