"""Eviction with the future known: what gives way for each op of an order, and when it is made again."""
