"""What a person sees and types: streams, waiting, Ctrl-C, help, completion."""
