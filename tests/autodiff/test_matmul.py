"""Matrix products."""

from __future__ import annotations

import itertools

import pytest

from tests.autodiff.gradcheck import check_gradient, node_model, values


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (1, 3, 4, 5)),
        ((3, 4), (2, 4, 5)),
        ((1, 3, 4), (2, 4, 5)),
        ((4,), (4,)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (2, 4, 5)),
        ((2, 3, 4), (4,)),
        ((2, 1, 4), (2, 4, 1)),
        ((1, 1), (1, 1)),
    ],
)
def test_matmul(a, b):
    check_gradient(node_model("MatMul", values(*a), values(*b, seed=5)))


@pytest.mark.parametrize(("flip_a", "flip_b"), list(itertools.product([0, 1], [0, 1])))
@pytest.mark.parametrize("scales", [{}, {"alpha": 0.5, "beta": 2.0}])
def test_gemm_flags(flip_a, flip_b, scales):
    a = values(*((4, 3) if flip_a else (3, 4)))
    b = values(*((5, 4) if flip_b else (4, 5)), seed=5)
    check_gradient(node_model("Gemm", a, b, values(5, seed=6), transA=flip_a, transB=flip_b, **scales))


@pytest.mark.parametrize("c", [(3, 5), (1, 5), (3, 1), (5,), (1,), (), None])
def test_gemm_bias(c):
    bias = [] if c is None else [values(*c, seed=6)]
    check_gradient(node_model("Gemm", values(3, 4), values(4, 5, seed=5), *bias, beta=1.5))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bhid,bhjd->bhij", [(2, 2, 3, 4), (2, 2, 5, 4)]),
        ("ij->ji", [(3, 4)]),
        ("ij->i", [(3, 4)]),
        ("ij,ik,kj->i", [(3, 4), (3, 5), (5, 4)]),
        ("ij,jk", [(3, 4), (4, 5)]),
        ("i,i->", [(4,), (4,)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("ij,kl->l", [(3, 4), (2, 5)]),
    ],
)
def test_einsum(equation, shapes):
    inputs = [values(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    check_gradient(node_model("Einsum", *inputs, equation=equation))
