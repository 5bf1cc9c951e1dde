"""Gradients of convolutions, in the form that is fastest for their sizes."""
