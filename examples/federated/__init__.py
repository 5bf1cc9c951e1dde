"""Flower's federated rounds over the files of `ckplan artifacts`: clients step, the server averages."""
