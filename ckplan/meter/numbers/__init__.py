"""Outputs of two files compared, and where a number that is not finite comes from."""
