"""What kernels take while they run, beyond their outputs, and what they do with buffers."""
