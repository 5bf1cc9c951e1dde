"""Shapes, types and what constants decide: inferred, folded, or learnt by running the model."""
