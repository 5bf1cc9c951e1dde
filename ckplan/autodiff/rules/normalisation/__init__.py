"""Gradients of normalisations, with the statistics of batches, groups, layers and rows."""
