"""Files that torch's exporters wrote: the parameters that the module had, and where it stops gradients."""
