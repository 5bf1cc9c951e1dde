"""The graph that onnxruntime executes: its nodes after all optimisations, their order, shapes and feeds."""
