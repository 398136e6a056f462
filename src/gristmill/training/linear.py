"""Logistic regression by scikit-learn, and the linear classifier over words and pairs of words that it fits."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.errors import require_module
from gristmill.stages.text.classifiers.linear import LinearModel
from gristmill.training.labelled_data import LabelledTexts, Progress, silent

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


def check_scikit_learn() -> None:
    """Refuse to train if scikit-learn is not installed.

    Raises:
        MissingExtraError: It is not installed.
    """
    require_module("sklearn", "Fitting a classifier")


def train_linear(
    data: LabelledTexts,
    *,
    bits: int = 32,
    min_texts: int = 2,
    strength: float = 10.0,
    steps: int = 200,
    progress: Progress = silent,
) -> LinearModel:
    """A linear classifier, fitted by regularised logistic regression.

    Args:
        data: The training data.
        bits: Words and pairs are hashed into 2 ** bits buckets: 32 avoids collisions, fewer make a smaller model.
        min_texts: Ignore words and pairs that occur in fewer texts, unless that leaves none.
        strength: Inverse regularisation strength (the C of logistic regression).
        steps: Maximum number of optimiser steps.
        progress: Notified at the start and the end of the fit.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    check_scikit_learn()
    from scipy import sparse

    from gristmill.kernels.linear_text import linear_features
    from gristmill.kernels.text_column import text_column

    column = text_column(data.texts)
    ends, hashed, values = linear_features(column.data, column.offsets, bits)
    buckets, places, texts = np.unique(hashed, return_inverse=True, return_counts=True)
    counts = texts >= min(min_texts, texts.max(initial=1))
    # Smoothed rarity (Spärck Jones, 1972), as usual for TF-IDF.
    rarity = (np.log((1 + len(data)) / (1 + texts)) + 1).astype(np.float32)
    matrix = sparse.csr_matrix((values * rarity[places], places, ends), shape=(len(data), len(buckets)))[:, counts]
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1), np.float64)).ravel()
    matrix = sparse.csr_matrix(matrix.multiply(1 / np.maximum(lengths, 1e-12)[:, None]), dtype=np.float32)
    progress("fitting", 0.0)
    reach = telling_reach(matrix, data.classes, len(data.labels))
    fitted, bias = fit_logistic(matrix.multiply(reach), data.classes, len(data.labels), strength=strength, steps=steps)
    progress("fitting", 1.0)
    return LinearModel(data.labels, bits, buckets[counts], fitted * reach[:, None], rarity[counts], bias)


def fit_logistic(
    features: Any, classes: Integers, number: int, *, strength: float, steps: int = 200
) -> tuple[Floats, Floats]:
    """The weights (columns × classes) and biases that make the true classes most probable, with a penalty on squares.

    Args:
        features: Texts × columns, as an array or a sparse matrix.
        classes: The true class of each text.
        number: Number of classes; a class without texts becomes the least probable everywhere.
        strength: Inverse strength of the penalty (the C of logistic regression).
        steps: The most steps of the optimiser.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    seen = np.unique(classes)
    weights = np.zeros((features.shape[1], number), np.float32)
    bias = np.full(number, -np.log(1 + len(classes)), np.float32)
    bias[seen] = 0
    if len(seen) == 1:
        return weights, bias
    # scikit-learn refuses a matrix without columns; one of zeros changes nothing.
    matrix = features if features.shape[1] else np.zeros((len(classes), 1), np.float32)
    # For two classes it only fits the difference of their weights, which the same penalty affects twice as much.
    model = LogisticRegression(C=strength * (2 if len(seen) == 2 else 1), max_iter=steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # more steps change probabilities, but hardly any label
        model.fit(matrix, classes)
    fitted, constant = model.coef_, model.intercept_
    if len(seen) == 2:
        fitted, constant = np.vstack([-fitted, fitted]) / 2, np.concatenate([-constant, constant]) / 2
    weights[:, seen] = fitted.T[: len(weights)]
    bias[seen] = constant
    bias[np.setdiff1d(np.arange(number), seen)] += constant.min()
    return weights, bias


def telling_reach(features: Any, classes: Integers, number: int, *, share: float = 0.5) -> Floats:
    """A factor for each column: the more informative it is about one of the classes, the farther its weights may move.

    Its information about a class is how much more or less often it occurs there than elsewhere, as a logarithm: the
    ratio by which Wang and Manning scale features in "Baselines and Bigrams: Simple, Good Sentiment and Topic
    Classification" (ACL 2012), likewise blended with 1. The most informative class determines the factor of a column.

    Args:
        features: A sparse matrix of texts × columns.
        classes: The true class of each text.
        number: Number of classes.
        share: From 0, where all weights can move equally far, to 1, where uninformative ones do not move.
    """
    from scipy import sparse

    texts = np.bincount(classes, minlength=number)
    rows = len(classes)
    one_hot = sparse.csr_matrix((np.ones(rows), classes, np.arange(rows + 1)), shape=(rows, number))
    inside = ((features != 0).T @ one_hot).toarray()
    outside = inside.sum(1, keepdims=True) - inside
    told = np.abs(np.log((inside + 1) / (texts + 2)) - np.log((outside + 1) / (rows - texts + 2)))
    usual = np.sqrt((told**2).mean()) if told.size else 1.0
    reach: Floats = (1 - share + share * told.max(axis=1, initial=0) / max(usual, 1e-12)).astype(np.float32)
    return reach
