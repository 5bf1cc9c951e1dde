"""A model that is only run, with regions in pieces: attention, and what works sample by sample or token by token."""

from __future__ import annotations

import json

import onnx_ir as ir

from ckplan import keys
from ckplan.autodiff.assembly import name_nodes
from ckplan.autodiff.attention.pieces import chunk_attentions
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import inline_composites
from ckplan.autodiff.paths import prune
from ckplan.autodiff.pieces.micro_batches import cut_batch
from ckplan.autodiff.pieces.regions import OFF, Chunks, Pieces, Region, refuse_idle, told
from ckplan.autodiff.pieces.token_blocks import cut_tokens
from ckplan.autodiff.training_mode import write_out_batch_statistics


def forward_in_pieces(forward: ir.Model, chunks: Chunks = OFF) -> tuple[ir.Model, tuple[Region, ...], tuple[str, ...]]:
    """A copy of a model whose regions go into pieces, these regions, and what is to be said of it.

    Args:
        forward: a model with static shapes everywhere and all its functions inlined; see :func:`ckplan.load`.
        chunks: into how many pieces; see :mod:`ckplan.autodiff.pieces.regions`.

    Raises:
        UsageError: there is no such region.
    """
    model, pieces = forward.clone(), Pieces.of(chunks)
    graph = model.graph
    name_nodes(graph)
    op = Builder(graph, graph.opset_imports, functions=model.functions)
    write_out_batch_statistics(op)
    inline_composites(op)
    _, batches, batch_notes = cut_batch(op, pieces.batch, set())
    _, attentions, row_notes = chunk_attentions(op, pieces.attention, set())
    _, stretches = cut_tokens(op, pieces.tokens, set())
    regions = (*attentions, *batches, *stretches)
    refuse_idle(pieces, regions)
    if any(region.pieces > 1 for region in regions):
        prune(graph, list(graph.outputs))
        model.metadata_props[keys.CHUNKS] = json.dumps(told(regions))
    return model, regions, (*told(regions), *batch_notes, *row_notes)
