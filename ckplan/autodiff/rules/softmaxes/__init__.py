"""Gradients of softmaxes, behind masks and in attention."""
