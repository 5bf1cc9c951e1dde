"""Processor time: of two files in turns, of single kernels, and of the nodes of a graph by them."""
