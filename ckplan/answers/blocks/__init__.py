"""The repeated blocks of a network: what a person means by "the convolutions" or "a transformer block"."""
