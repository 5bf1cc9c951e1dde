"""Gradients of pooling, and of what is taken as one with it."""
