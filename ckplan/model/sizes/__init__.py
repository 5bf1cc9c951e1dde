"""Sizes that a file leaves open, and those that it fixed for another batch."""
