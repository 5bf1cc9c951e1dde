"""Passes that put equal nodes which take less memory or time in the place of some."""
