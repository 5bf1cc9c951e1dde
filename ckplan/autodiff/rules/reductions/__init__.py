"""Gradients of sums, products and other reductions along axes."""
