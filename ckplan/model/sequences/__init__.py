"""Sequences of tensors whose make-up is known, in operators on tensors."""
