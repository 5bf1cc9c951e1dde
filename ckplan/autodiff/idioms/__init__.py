"""Several nodes that gradients are often written with, each as one function."""
