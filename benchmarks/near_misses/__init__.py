"""Networks with something in them changed: what is almost a known form must not be taken for it."""
