"""Trains the model that tells which blocks of a page belong to its text, on the labelled pages in ../shared/data.

    python -m tools.train_block_model

Pages of the Web Content Extraction Benchmark and of the article extraction benchmark, whose texts people marked. A
block is taken for a part of the text if most of its runs of four words are in the marked text. The result is the file
of weights that the package carries; `benchmarks/bench_extraction.py` trains on four fifths of the pages and tests on
the others.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gristmill.stages.text.extraction.auto import page_figures
from gristmill.stages.text.extraction.fast import inside_of, main_of
from gristmill.stages.text.extraction.markup import Lines, blocks_of
from gristmill.stages.text.extraction.page import Page

ROOT = Path(__file__).resolve().parent.parent
WEIGHTS = ROOT / "src" / "gristmill" / "stages" / "text" / "extraction" / "block_model.json"
_WORD = re.compile(r"\w+")
_SAMPLE, _HIDDEN, _ROUNDS, _SEED, _MEMBERS = 100_000, 24, 12, 0, 3


class LabelledBlocks(NamedTuple):
    """The blocks of one page: features, whether they belong to the text, and how much they count."""

    figures: Any
    belong: Any
    weights: Any


def labelled_blocks(html: bytes, text: str) -> LabelledBlocks:
    """The blocks of a page whose text people marked."""
    page = Page(html, None, None, max_depth=2000, fix_encoding=False)
    main, blocks = blocks_of(main_of(page.tree, links=True)), blocks_of(inside_of(page.tree, links=True))
    lines = Lines()
    figures = page_figures(main, blocks, lines)
    words = _WORD.findall(text.lower())
    runs = {tuple(words[start : start + 4]) for start in range(len(words) - 3)}
    whole = f" {' '.join(words)} "
    belong, counts = [], []
    for block in blocks:
        own = _WORD.findall(lines[block].lower())
        counts.append(len(own))
        if len(own) >= 5:
            found = sum(tuple(own[start : start + 4]) in runs for start in range(len(own) - 3))
            belong.append(found > 0.5 * (len(own) - 3))
        else:
            belong.append(f" {' '.join(own)} " in whole)
    # A block without words says nothing; every page counts the same.
    weights = np.sqrt(np.array(counts, np.float64))
    return LabelledBlocks(figures, np.array(belong, bool), weights / max(weights.sum(), 1.0))


def train(pages: Sequence[LabelledBlocks], *, seed: int = _SEED) -> dict[str, Any]:
    """The weights of a model for these pages."""
    from sklearn.neural_network import MLPClassifier
    from sklearn.preprocessing import StandardScaler

    pages = [page for page in pages if len(page.belong)]
    figures, belong = np.vstack([page.figures for page in pages]), np.concatenate([page.belong for page in pages])
    weights = np.concatenate([page.weights for page in pages])
    drawn = np.random.default_rng(seed).choice(len(belong), _SAMPLE, p=weights / weights.sum())
    scaler = StandardScaler().fit(figures[drawn])
    networks = []
    for member in range(_MEMBERS):
        network = MLPClassifier(
            (_HIDDEN,),
            activation="tanh",
            alpha=1e-2,
            max_iter=_ROUNDS,
            learning_rate_init=2e-3,
            batch_size=256,
            random_state=seed * _MEMBERS + member,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is meant to stop early
            networks.append(network.fit(scaler.transform(figures[drawn]), belong[drawn]))
    # The mean of several networks with one hidden layer is a network with one hidden layer.
    return {
        "mean": scaler.mean_,
        "scale": scaler.scale_,
        "hidden": np.hstack([network.coefs_[0] for network in networks]),
        "hidden_bias": np.concatenate([network.intercepts_[0] for network in networks]),
        "output": np.concatenate([network.coefs_[1][:, 0] for network in networks]) / _MEMBERS,
        "output_bias": np.mean([network.intercepts_[1][0] for network in networks]),
    }


def main() -> None:
    """Train on all pages and write the weights."""
    from tests.unit.stages.text.extraction.pages import pages

    data = ROOT.parent / "shared" / "data"
    known = [*pages(data, "wcxb_dev_subset"), *pages(data, "article_extraction_benchmark")]
    weights = train([labelled_blocks(page.html, page.text) for page in known])
    short = np.vectorize(lambda value: float(f"{value:.5g}"))
    told = {name: short(np.asarray(values)).tolist() for name, values in weights.items()}
    WEIGHTS.write_text(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
