"""A loop around step files: schedules, accumulation, evaluation, checkpoints, and trained weights back in a model."""
