"""Regions in pieces, so that what is large inside them never exists whole."""
