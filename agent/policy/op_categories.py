"""Categories of ops: the kind of work that an op does, from its type alone."""

from __future__ import annotations

import numpy as np

from graphs.system.array_types import FloatArray

CATEGORIES = ("optimizer", "contraction", "reduction", "movement", "pointwise", "other")

KEYWORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("optimizer", ("optim.", "apply")),
    ("contraction", ("mm", "matmul", "conv", "attention", "linear", "einsum", "dot", "lstm", "gru")),
    ("movement", ("cat", "stack", "split", "copy", "clone", "slice", "select", "gather", "scatter", "index")),
    ("movement", ("embedding", "pad", "transpose", "permute", "reshape", "expand", "repeat", "roll", "flip")),
    ("movement", ("full", "arange", "zeros")),
    ("reduction", ("sum", "mean", "norm", "softmax", "max", "min", "var", "std", "pool", "loss", "topk")),
    ("reduction", ("sort", "any", "all", "prod")),
)
"""Parts of op types by category; the first that occurs in a type decides."""


def category(op_type: str) -> str:
    """Finds the category, one of `CATEGORIES`, of an op type such as `aten.mm`."""
    lowered = op_type.lower()
    for name, parts in KEYWORDS:
        if any(part in lowered for part in parts):
            return name
    return "pointwise" if lowered.startswith("aten.") else "other"


def one_hot(op_types: tuple[str, ...]) -> FloatArray:
    """Encodes the categories of many ops as indicators, (n_ops, n_categories)."""
    table = {kind: CATEGORIES.index(category(kind)) for kind in set(op_types)}
    return np.eye(len(CATEGORIES))[[table[kind] for kind in op_types]]
