"""The forward graph in the form in which it is differentiated: formulas as one node each, regions in pieces."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ckplan.autodiff.attention.grouped_heads import group_heads
from ckplan.autodiff.attention.idle_masks import drop_idle_masks
from ckplan.autodiff.attention.operator import write_out_attentions
from ckplan.autodiff.attention.pieces import chunk_attentions
from ckplan.autodiff.attention.shown_keys import leave_out_hidden_keys
from ckplan.autodiff.attention.softmax_guards import drop_softmax_guards
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.formulas.gelus import join_gelus
from ckplan.autodiff.formulas.log_sigmoids import write_log_sigmoids
from ckplan.autodiff.formulas.rotations import join_rotations
from ckplan.autodiff.formulas.softpluses import join_softpluses
from ckplan.autodiff.losses.linear_cross_entropy import chunk_loss_heads
from ckplan.autodiff.losses.softmax_statistics import join_statistics
from ckplan.autodiff.losses.tied_heads import split_tied_heads
from ckplan.autodiff.paths import prune
from ckplan.autodiff.pieces.micro_batches import cut_batch
from ckplan.autodiff.pieces.regions import Pieces, Region, refuse_idle
from ckplan.autodiff.pieces.token_blocks import cut_tokens
from ckplan.autodiff.rewrites.batch_statistics import outline_batch_statistics
from ckplan.autodiff.rewrites.columns_apart import take_columns_apart
from ckplan.autodiff.rewrites.einsums import multiply_einsums
from ckplan.autodiff.rewrites.layer_scales import scale_weights
from ckplan.autodiff.rewrites.normalised_inputs import normalise_for_weights
from ckplan.autodiff.rewrites.paddings import pad_in_convolutions
from ckplan.autodiff.rewrites.patches import multiply_patches
from ckplan.autodiff.rewrites.spread_rows import gather_rows
from ckplan.autodiff.rules.convolution.conv_batch_norm import outline_conv_batch_norms
from ckplan.autodiff.rules.elementwise.angles import outline_angles
from ckplan.autodiff.rules.elementwise.mish import outline_mishes
from ckplan.autodiff.rules.elementwise.silu import outline_silus
from ckplan.autodiff.rules.normalisation.group_norm import outline_group_norms
from ckplan.autodiff.rules.pooling.pooled_relu import outline_pooled_relus
from ckplan.autodiff.rules.softmaxes.masked_softmax import outline_masked_softmaxes

Targets = dict[ir.Value, ir.Value | None]
"""The values that the reverse sweep starts from, with their gradients; None stands for ones."""


@dataclass(frozen=True)
class ForwardForms:
    """What became of a forward graph.

    Attributes:
        targets: the values to differentiate now.
        results: the outputs to keep now.
        regions: what runs in pieces, or could.
        batches: those of them that run in blocks of samples.
        blocks: what blocks of samples put in the place of values.
        notes: what was decided on the way, of losses, blocks of samples and attentions in this order.
    """

    targets: Targets
    results: list[ir.Value]
    regions: list[Region]
    batches: list[Region]
    blocks: dict[ir.Value, ir.Value]
    notes: list[str]


def prepare_forward(
    op: Builder,
    pieces: Pieces,
    targets: Targets,
    results: Sequence[ir.Value],
    *,
    parameters: Collection[ir.Value],
    wanted: Collection[ir.Value],
    left_out: Collection[ir.Value],
    running: Collection[ir.Value],
) -> ForwardForms:
    """Rewrite a forward graph, losses and all, so that gradient rules find what they know in a single node.

    Args:
        op: builder of the graph.
        pieces: into how many pieces regions go.
        targets: what is differentiated.
        results: the outputs to keep, new running statistics apart.
        parameters: the parameters that gradients are asked for.
        wanted: everything that gradients are asked for.
        left_out: parameters of the model that no gradient is asked for.
        running: new running statistics.

    Raises:
        UsageError: pieces are asked for, and there is nothing that could go into any.
    """
    op.wanted = set(wanted)  # what is trained is no constant, whatever it is before it is trained
    held = {*wanted, *targets}
    write_out_attentions(op, held)
    multiply_einsums(op)
    drop_idle_masks(op, held.union(left_out))
    zeroed = drop_softmax_guards(op, held.union(left_out))
    pad_in_convolutions(op, held)
    join_gelus(op, held)
    write_log_sigmoids(op, held)
    join_softpluses(op, held)
    gather_rows(op)
    joined = join_statistics(op, held)
    if joined:
        targets = {joined.get(value, value): seed for value, seed in targets.items()}
        results = [joined.get(value, value) for value in results]
        prune(op.graph, [*results, *running])
    shown = leave_out_hidden_keys(op, wanted, held.union(left_out), zeroed)
    heads, regions, head_notes = chunk_loss_heads(op, pieces, set(wanted), targets)
    stops = {*wanted, *(heads.get(value, value) for value in targets)}
    blocks, batches, batch_notes = cut_batch(op, pieces.batch, stops)
    rows, attentions, row_notes = chunk_attentions(op, pieces.attention, set(wanted))
    tokens, stretches = cut_tokens(op, pieces.tokens, {*stops, *(blocks.get(value, value) for value in stops)})
    regions += [*attentions, *batches, *stretches]
    refuse_idle(replace(pieces, masks=1), regions, head_notes)  # masks are sought where gradients read them
    heads |= shown | blocks | rows | tokens | split_tied_heads(op, set(parameters))
    targets = {heads.get(value, value): seed for value, seed in targets.items()}
    results = [heads.get(value, value) for value in results]
    if heads:
        prune(op.graph, [*results, *running])
    held = {*wanted, *targets}
    take_columns_apart(op, held.union(results))
    scale_weights(op, wanted, held.union(results))
    normalise_for_weights(op, wanted, held.union(results))
    multiply_patches(op, held.union(results))
    outline_batch_statistics(op, held)
    outline_conv_batch_norms(op, targets)
    outline_group_norms(op, held)
    outline_silus(op, held)
    outline_mishes(op, held)
    outline_angles(op, held)
    outline_pooled_relus(op, held)
    outline_masked_softmaxes(op, held)
    group_heads(op, held)
    join_rotations(op, held, left_out)
    return ForwardForms(targets, list(results), regions, batches, blocks, [*head_notes, *batch_notes, *row_notes])
