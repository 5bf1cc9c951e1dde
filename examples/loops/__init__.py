"""One training loop in several languages, over the files that `ckplan artifacts` writes."""
