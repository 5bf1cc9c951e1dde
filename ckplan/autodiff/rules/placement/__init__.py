"""Gradients of operators that compute nothing: elements are moved, picked by index, or put in places."""
