"""Lets `model.predict([...])` of `fasttext-predict` return probabilities, and adds `model.labels`, as in `fasttext`.

The extra `langid` brings `fasttext-predict`, which installs itself as `fasttext`. For a list it returns labels alone,
so that `labels, probabilities = model.predict(texts)` fails, or for two texts mistakes the labels of the second for
probabilities. Gristmill reads models itself; only scripts that import `fasttext` are affected.
"""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any

import numpy as np

_originals: list[tuple[type, Any]] = []


def apply() -> None:
    """Replace `predict` of `fasttext-predict`; does nothing without it or if the full package is installed."""
    try:
        metadata.distribution("fasttext-predict")
        found = importlib.import_module("fasttext.FastText")
    except ImportError:  # no such package, or another one under this name
        return
    if hasattr(found, "train_supervised") or _originals:
        return
    single = found._FastText.predict

    def predict(
        self: Any, text: Any, k: int = 1, threshold: float = 0.0, on_unicode_error: str = "strict"
    ) -> tuple[Any, Any]:
        if not isinstance(text, list):
            labels, probabilities = single(self, text, k, threshold, on_unicode_error)
            return labels, np.asarray(probabilities)
        rows = [single(self, one, k, threshold, on_unicode_error) for one in text]
        return [list(labels) for labels, _ in rows], [np.asarray(values, np.float32) for _, values in rows]

    def labels(self: Any) -> list[str]:
        return list(single(self, "", -1, 0.0, "strict")[0])

    _originals.append((found._FastText, single))
    found._FastText.predict, found._FastText.get_labels = predict, labels
    found._FastText.labels = property(labels)


def undo() -> None:
    """Restore what the package defines."""
    while _originals:
        cls, original = _originals.pop()
        cls.predict = original  # type: ignore[attr-defined]
        del cls.get_labels, cls.labels  # type: ignore[attr-defined]
