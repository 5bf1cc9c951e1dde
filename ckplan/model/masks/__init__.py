"""What a mask chooses of a tensor is computed of all its elements."""
