"""Gradients of LSTM, GRU and RNN; see :mod:`ckplan.autodiff.recurrent`."""

from __future__ import annotations

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.control_flow.chunks import Chunks, chunker
from ckplan.autodiff.recurrent.gradient import recurrent_gradient
from ckplan.autodiff.recurrent.gru import GRU
from ckplan.autodiff.recurrent.lstm import LSTM
from ckplan.autodiff.recurrent.rnn import RNN
from ckplan.autodiff.recurrent.time_chunks import chunk_recurrent
from ckplan.autodiff.registry import rule


@rule("LSTM", since=7, fixed=[4])
def lstm_gradient(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads what the forward loop stores of each step: states before it, gates, candidate (6 H numbers a sample)."""
    return recurrent_gradient(op, node, dy, LSTM)


@rule("GRU", since=7, fixed=[4])
def gru_gradient(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads what the forward loop stores of each step: the state before it, gates, candidate (4 or 5 H numbers)."""
    return recurrent_gradient(op, node, dy, GRU)


@rule("RNN", since=7, fixed=[4])
def rnn_gradient(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads the state before each step, which the forward loop stores."""
    return recurrent_gradient(op, node, dy, RNN)


@chunker("LSTM")
def chunk_lstm(op: Builder, node: ir.Node, chunks: Chunks) -> str | None:
    """Cut into chunks along time."""
    return chunk_recurrent(op, node, chunks, LSTM)


@chunker("GRU")
def chunk_gru(op: Builder, node: ir.Node, chunks: Chunks) -> str | None:
    """Cut into chunks along time."""
    return chunk_recurrent(op, node, chunks, GRU)


@chunker("RNN")
def chunk_rnn(op: Builder, node: ir.Node, chunks: Chunks) -> str | None:
    """Cut into chunks along time."""
    return chunk_recurrent(op, node, chunks, RNN)
