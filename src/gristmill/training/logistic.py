"""Logistic regression over sparse features, dense ones, or both, fitted by L-BFGS."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(slots=True)
class Features:
    """The features of some texts: a sparse matrix (ends of rows from 0 on, columns, values), and a dense one.

    Only columns that occur are kept; `present` says which ones they were.
    """

    ends: Integers
    columns: Integers
    values: Floats
    present: Integers
    dense: torch.Tensor

    @classmethod
    def of(cls, ends: Integers, columns: Integers, values: Floats, dense: torch.Tensor | None = None) -> Features:
        """The features with their columns numbered anew; without `dense` there are sparse ones only."""
        present, compact = np.unique(columns, return_inverse=True)
        rest = torch.empty(len(ends) - 1, 0) if dense is None else dense
        return cls(ends, compact.astype(np.int64), values.astype(np.float32), present, rest)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def part(self, rows: Integers) -> Features:
        """The features of some texts, with the same columns."""
        lengths = np.diff(self.ends)[rows]
        ends = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(ends[-1]) - np.repeat(ends[:-1] - self.ends[rows], lengths)
        return Features(ends, self.columns[places], self.values[places], self.present, self.dense[rows])

    def with_dense_times(self, factor: float) -> Features:
        """The features with the dense ones made larger or smaller, and so penalised less or more."""
        return Features(self.ends, self.columns, self.values, self.present, self.dense * factor)


@dataclass(slots=True)
class Weights:
    """What was fitted: weights of the present sparse columns and of the dense ones, and a bias, for each class."""

    sparse: torch.Tensor
    dense: torch.Tensor
    bias: torch.Tensor


def fit_logistic(
    features: Features,
    classes: Integers,
    number: int,
    *,
    strength: float,
    steps: int = 60,
    reach: torch.Tensor | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Weights:
    """The weights that make the true classes most probable, with a penalty on their squares.

    Args:
        features: What is known of each text.
        classes: The true class of each text.
        number: How many classes there are.
        strength: How much the data count against the penalty (the C of logistic regression).
        steps: The most steps of the optimiser.
        reach: How far each sparse weight moves for the same penalty (present columns × classes); None is 1 for all.
        on_step: Told the number of each evaluation.
    """
    matrix, transposed = _matrices(features)
    dense, truth, rows = features.dense, torch.from_numpy(classes), len(features)
    far = torch.ones(1, 1) if reach is None else reach
    shapes = ((len(features.present), number), (dense.shape[1], number), (number,))
    moved, dense_weights, bias = (torch.zeros(shape, requires_grad=True) for shape in shapes)
    penalty = 1.0 / (strength * rows)
    optimiser = torch.optim.LBFGS(
        [moved, dense_weights, bias], max_iter=steps, history_size=10, line_search_fn="strong_wolfe"
    )
    calls = 0

    def loss() -> torch.Tensor:
        nonlocal calls
        calls += 1
        if on_step is not None:
            on_step(calls)
        with torch.no_grad():
            logits = matrix @ (moved * far) + dense @ dense_weights + bias
            squares = (moved**2).sum() + (dense_weights**2).sum()
            value = nn.functional.cross_entropy(logits, truth) + 0.5 * penalty * squares
            wrong = torch.softmax(logits, dim=1)
            wrong[torch.arange(rows), truth] -= 1
            wrong /= rows
            moved.grad = (transposed @ wrong) * far + penalty * moved
            dense_weights.grad = dense.T @ wrong + penalty * dense_weights
            bias.grad = wrong.sum(0)
        return value

    optimiser.step(loss)
    return Weights((moved * far).detach(), dense_weights.detach(), bias.detach())


def telling_reach(features: Features, classes: Integers, number: int, *, share: float = 0.5) -> torch.Tensor:
    """How far the weight of each present sparse column may move for each class: the farther, the more it tells.

    What a column tells about a class is how much more or less often it occurs there than elsewhere, as a logarithm: the
    ratio by which Wang and Manning scale features in "Baselines and Bigrams: Simple, Good Sentiment and Topic
    Classification" (ACL 2012), likewise blended with 1.

    Args:
        features: What is known of each text.
        classes: The true class of each text.
        number: How many classes there are.
        share: From 0, where all weights move as far, to 1, where those that tell nothing do not move.
    """
    row_of = np.repeat(np.arange(len(features)), np.diff(features.ends))
    places = features.columns * number + classes[row_of]
    inside = np.bincount(places, minlength=len(features.present) * number).reshape(-1, number)
    texts = np.bincount(classes, minlength=number)
    outside = inside.sum(1, keepdims=True) - inside
    told = np.abs(np.log((inside + 1) / (texts + 2)) - np.log((outside + 1) / (len(features) - texts + 2)))
    usual = np.sqrt((told**2).mean()) if told.size else 1.0
    return torch.from_numpy((1 - share + share * told / max(usual, 1e-12)).astype(np.float32))


def logits_of(features: Features, weights: Weights) -> torch.Tensor:
    """The values of all classes before the softmax."""
    values: torch.Tensor = _matrices(features)[0] @ weights.sparse + features.dense @ weights.dense + weights.bias
    return values


def _matrices(features: Features) -> tuple[Any, Any]:
    rows, width = len(features), len(features.present)
    row_of = np.repeat(np.arange(rows), np.diff(features.ends))
    order = np.argsort(features.columns, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(features.columns, minlength=width))])
    return (
        _sparse(features.ends, features.columns, features.values, (rows, width)),
        _sparse(starts, row_of[order], features.values[order], (width, rows)),
    )


def _sparse(ends: Any, columns: Any, values: Any, shape: tuple[int, int]) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its sparse tensors a beta; products of them are all we use
        return torch.sparse_csr_tensor(
            torch.from_numpy(ends), torch.from_numpy(columns), torch.from_numpy(values), shape, check_invariants=False
        )
