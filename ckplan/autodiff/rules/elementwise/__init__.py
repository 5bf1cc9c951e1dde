"""Gradients of functions that go element by element, of one input or of several that broadcast."""
