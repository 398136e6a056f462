"""A small network that decides which blocks of a page belong to its main text.

Its weights are in a file beside this module, trained by `tools/train_block_model.py` on annotated pages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.stages.text.extraction.block_features import FEATURES, Floats

THRESHOLD = 0.45


class BlockModel:
    """One hidden layer over scaled features.

    Args:
        weights: `mean` and `scale` of each feature, `hidden` and `hidden_bias`, `output` and `output_bias`.
    """

    def __init__(self, weights: Mapping[str, Any]) -> None:
        parts = {name: np.asarray(values, np.float64) for name, values in weights.items()}
        hidden = parts["hidden"] / parts["scale"][:, None]
        self._hidden = hidden
        self._hidden_bias = parts["hidden_bias"] - parts["mean"] @ hidden
        self._output = parts["output"]
        self._output_bias = float(parts["output_bias"])
        assert hidden.shape[0] == FEATURES, hidden.shape

    def belong(self, figures: Floats) -> list[bool]:
        """Which of the blocks with these features belong to the main text."""
        odds = np.tanh(figures @ self._hidden + self._hidden_bias) @ self._output + self._output_bias
        kept: list[bool] = (odds > np.log(THRESHOLD / (1 - THRESHOLD))).tolist()
        return kept


@cache
def shipped_model() -> BlockModel:
    """The model of this package."""
    return BlockModel(json.loads(Path(__file__).with_name("block_model.json").read_bytes()))
