"""What gradients are asked for, and what shows that a tensor is a parameter."""
