"""Formulas that models write out in arithmetic, made one node again, whose gradient is known as a whole.

`polynomials` tells what a formula is, however a file writes it, and `replacement` puts the node in its place.
"""
