"""What is said of models whose nodes have no training form, or not where one could be made."""

from __future__ import annotations

import numpy as np
import pytest

import ckplan
from ckplan.errors import UsageError
from tests.autodiff.gradcheck import parse, values
from tests.autodiff.test_training_batch_norm import convolutional


def test_nodes_inside_bodies_stay_and_are_named():
    model = parse(
        """g (bool c) => (float y) {
            a = If (c) <
                then_branch = t () => (float[6,50] d) { d = Dropout (p) },
                else_branch = e () => (float[6,50] i) { i = Identity (p) }
            >
            y = ReduceSum <keepdims = 0> (a)
        }""",
        p=values(6, 50).astype(np.float32),
    )
    training = ckplan.build_training_graph(model, training=True)
    assert any("1 node(s) stay as they are in the file (Dropout" in note for note in training.notes)


def test_a_model_without_such_nodes_is_told_how_they_were_lost():
    model = parse("g () => (double loss) { loss = ReduceSum <keepdims = 0> (p) }", p=values(3))
    assert any(
        "no BatchNormalization and no Dropout" in n for n in ckplan.build_training_graph(model, training=True).notes
    )


def test_training_form_is_for_forward_models():
    first = ckplan.build_training_graph(convolutional())
    with pytest.raises(UsageError, match="training graph already"):
        ckplan.build_training_graph(first.model, training=True)
