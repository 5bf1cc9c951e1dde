"""Gradients of matrix products, Einsum, determinants and Fourier transforms."""
