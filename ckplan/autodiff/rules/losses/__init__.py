"""Gradients of losses, and of loss heads with the linear layer before them."""
