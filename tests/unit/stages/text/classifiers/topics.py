"""Made-up texts about three topics."""

from __future__ import annotations

import numpy as np

from gristmill.training.labelled_data import LabelledTexts

WORDS = [["ball", "goal", "team", "match"], ["atom", "cell", "star", "light"], ["bank", "stock", "price", "tax"]]


def topics(number: int) -> LabelledTexts:
    """Texts that a classifier can learn to tell apart."""
    rng = np.random.default_rng(1)
    classes = np.arange(number) % 3
    texts = [" ".join([*rng.choice(WORDS[c], 6), *rng.choice(["the", "a", "of"], 4)]) for c in classes]
    return LabelledTexts(texts, classes, ["money", "science", "sports"])
