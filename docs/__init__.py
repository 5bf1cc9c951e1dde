"""The documentation's own tools: pages and pictures made from the code, and the examples that are run."""
