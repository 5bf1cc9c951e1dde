"""From what runs to what is trained: the passes over a file of torch's, and the order in which they have to go.

An exporter writes what runs. Its optimiser merges initializers of equal values and computes beforehand what depends on
parameters alone, so that a parameter may be there once for several, twice for one, or as a result only; and nothing in
a graph says what is a buffer, or detached. Each pass brings one of these back, and says in a note what it did or what
cannot be known. On files of other exporters most find nothing to do.

They go by what the file says, as far as it says anything: the default exporter's metadata (`read_signature`), the old
one's names. Where only values can tell, they must tell with certainty: equal to the bit, or to a few units in the last
place, in tensors that no formula explains.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ckplan.model.torch_files.constrained import keep_forms
from ckplan.model.torch_files.default_exporter import read_signature
from ckplan.model.torch_files.detached import mark_detached
from ckplan.model.torch_files.frozen_bins import freeze_bins
from ckplan.model.torch_files.frozen_norms import freeze_norms
from ckplan.model.torch_files.looked_up import join_looked_up
from ckplan.model.torch_files.loss_weights import freeze_loss_weights
from ckplan.model.torch_files.masked_weights import keep_masks
from ckplan.model.torch_files.merged_constants import freeze_ones
from ckplan.model.torch_files.merged_detached import separate_merged_detached
from ckplan.model.torch_files.no_grad_blocks import no_grad_notes
from ckplan.model.torch_files.old_exporter import folded_notes, separate_merged
from ckplan.model.torch_files.own_gradients import own_gradient_notes
from ckplan.model.torch_files.padding import mark_padding
from ckplan.model.torch_files.projections import refuse_projections
from ckplan.model.torch_files.repeats import join_repeated
from ckplan.model.torch_files.simplified import simplified_notes
from ckplan.model.torch_files.ties import join_transposed
from ckplan.model.torch_files.unfold import unfold

PASSES: tuple[Callable[[ir.Model], tuple[str, ...]], ...] = (
    # What the exporter wrote as something else ends here, by name; what tools behind it took away is not there.
    refuse_projections,
    simplified_notes,
    # What each tensor is, as the default exporter says: the passes behind go by that. What it merged is taken apart.
    read_signature,
    # A parameter that was expanded for each sample is one again, before its values are compared with others.
    join_repeated,
    # The same of the old exporter, which says nothing but by names.
    separate_merged,
    # Buffers that look like parameters, before anything is computed of them.
    freeze_norms,
    freeze_bins,
    freeze_ones,
    freeze_loss_weights,
    # Two tensors that are one parameter.
    join_transposed,
    # Tensors that were computed of a parameter: one that is there, then one that is not.
    unfold,
    keep_forms,
    join_looked_up,
    # What is still a tensor of its own, though the old exporter computed it.
    folded_notes,
    keep_masks,
    # Where the module lets no gradient through.
    mark_padding,
    mark_detached,
    separate_merged_detached,
    no_grad_notes,
    own_gradient_notes,
)
"""Each changes a model in place and returns notes."""
