"""Products of matrices, attention, and what goes with them."""

from __future__ import annotations

from ckplan.operators.costs import attention, determinant, einsum, matmul, per_input
from ckplan.operators.record import MICROSOFT, Operator

OPERATORS = (
    Operator("Attention", cost=attention, heavy=True),
    Operator("Det", cost=determinant),
    Operator("Einsum", cost=einsum, heavy=True),
    Operator("FusedGemm", domain=MICROSOFT, cost=matmul),
    Operator("FusedMatMul", domain=MICROSOFT, cost=matmul, heavy=True),
    Operator("Gemm", cost=matmul, heavy=True),
    Operator("MatMul", cost=matmul, heavy=True),
    Operator("MultiHeadAttention", domain=MICROSOFT, cost=attention, heavy=True),
    Operator("RotaryEmbedding", cost=per_input(2)),
)
