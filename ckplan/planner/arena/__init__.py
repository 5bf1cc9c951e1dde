"""onnxruntime's arena on numbers: what it holds of what a schedule asks for, and how its regions are cut."""
