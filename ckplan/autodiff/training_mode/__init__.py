"""From inference form to training form: BatchNormalization by the statistics of the batch, Dropout that drops."""

from __future__ import annotations

from ckplan.autodiff.training_mode.enter import TrainingForms, enter_training, write_out_batch_statistics
from ckplan.autodiff.training_mode.running import join_running_statistics

__all__ = ["TrainingForms", "enter_training", "join_running_statistics", "write_out_batch_statistics"]
