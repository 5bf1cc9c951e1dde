"""What a training loop in any language needs, as files that are made together: ``ckplan artifacts``."""
