"""Gradients of operators that read between elements: Resize, grids, regions of interest."""
