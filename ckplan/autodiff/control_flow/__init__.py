"""Gradients through If, Scan and Loop, and checkpoints along time."""
