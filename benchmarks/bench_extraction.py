"""How good and how fast is the extraction of text from pages, beside the libraries that it uses?

    python benchmarks/bench_extraction.py [--rounds 2]

Quality: the F1 score over words against the text that people marked, by kind of page, on 507 pages. `auto` and `blocks`
(the block model by itself) are cross-validated: each page is judged by a model trained on four fifths of the pages, not
on itself, in two divisions. Segments: 230 pages in many languages of which no rule or model has seen a label; of the
segments that people marked as text or as none, those that are found (F1 score).

Speed: processor time of one process, the methods in turns on each page; the shortest of the rounds. Libraries get
decoded text; `fast` and `auto` start from bytes and include everything that `HtmlExtractor` does with a page.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gristmill.stages.text.extraction import auto  # noqa: E402
from gristmill.stages.text.extraction.block_model import BlockModel  # noqa: E402
from gristmill.stages.text.extraction.charset import decode_page  # noqa: E402
from gristmill.stages.text.extraction.page import Page  # noqa: E402
from tests.unit.stages.text.extraction.pages import Page as MarkedPage  # noqa: E402
from tests.unit.stages.text.extraction.pages import pages, word_f1  # noqa: E402
from tools.train_block_model import labelled_blocks, train  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "extraction.json"
SETS = ("wcxb_dev_subset", "article_extraction_benchmark", "trafilatura_eval")
LIBRARIES = ("trafilatura", "resiliparse", "justext")
FOLDS, DIVISIONS = 5, 2


def library(name: str, html: str) -> str:
    """The text that a library returns by itself."""
    if name == "trafilatura":
        import trafilatura

        return trafilatura.extract(html) or ""
    if name == "resiliparse":
        from resiliparse.extract.html2text import extract_plain_text

        return str(extract_plain_text(html, main_content=True, alt_texts=False))
    import justext

    judged = justext.justext(html.encode("utf-8", "ignore"), justext.get_stoplist("English"), encoding="utf-8")
    return "\n".join(paragraph.text for paragraph in judged if not paragraph.is_boilerplate)


def ours(name: str, html: bytes) -> str:
    """The text that one of our methods returns for the bytes of a page."""
    return Page(html, None, None, max_depth=2000, fix_encoding=False).text(name, "text")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    data = ROOT.parent / "shared" / "data"
    known = [page for name in SETS for page in pages(data, name)]
    marked = [page for page in known if page.text]
    texts, seconds = run(known, options.rounds)
    scores = {name: [word_f1(texts[name][page.url], page.text) for page in marked] for name in texts}
    scores |= cross_validated(marked, texts["trafilatura"])
    total = {name: sum(values) for name, values in seconds.items()}
    result: dict[str, Any] = {
        "machine": {
            "cpus": os.cpu_count(),
            "load_1m": round(os.getloadavg()[0], 1),
            "python": platform.python_version(),
            **{name: version(name) for name in LIBRARIES},
        },
        "pages": {"marked": len(marked), "segments": len(known) - len(marked)},
        "word_f1": by_kind(marked, scores),
        "segments_f1": {name: segments_f1([page for page in known if not page.text], texts[name]) for name in texts},
        "milliseconds_per_page": {name: round(1000 * value / len(known), 2) for name, value in total.items()},
        "times_trafilatura": {name: round(total["trafilatura"] / value, 2) for name, value in total.items()},
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def run(known: Sequence[MarkedPage], rounds: int) -> tuple[dict[str, dict[str, str]], dict[str, list[float]]]:
    """The text of every page by every method, and the processor time that it took at least."""
    methods: dict[str, Callable[[MarkedPage, str], str]] = {
        **{name: lambda page, html, name=name: library(name, html) for name in LIBRARIES},  # type: ignore[misc]
        "fast": lambda page, html: ours("fast", page.html),
        "auto": lambda page, html: ours("auto", page.html),
    }
    texts: dict[str, dict[str, str]] = {name: {} for name in methods}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for method in methods.values():  # imports and compiled patterns are not counted
        method(known[0], decode_page(known[0].html))
    for page in known:
        html = decode_page(page.html)
        best = dict.fromkeys(methods, float("inf"))
        for _ in range(rounds):
            for name, method in methods.items():
                start = time.process_time()
                texts[name][page.url] = method(page, html)
                best[name] = min(best[name], time.process_time() - start)
        for name, value in best.items():
            seconds[name].append(value)
    return texts, seconds


def cross_validated(marked: Sequence[MarkedPage], careful: dict[str, str]) -> dict[str, list[float]]:
    """The scores of `auto` and of the block model alone, on pages that the model was not trained on."""
    blocks = [labelled_blocks(page.html, page.text) for page in marked]
    scores = np.zeros((2, DIVISIONS, len(marked)))
    kinds = [kind_of(page) for page in marked]
    for division in range(DIVISIONS):
        folds = divided(kinds, division)
        for fold in range(FOLDS):
            weights = train([blocks[place] for place in np.flatnonzero(folds != fold)], seed=division)
            model = BlockModel(weights)
            for place in np.flatnonzero(folds == fold):
                page = marked[place]
                tree = Page(page.html, None, None, max_depth=2000, fix_encoding=False).tree
                told = auto.extract(tree, lambda: careful[page.url], is_markdown=False, model=model)  # noqa: B023
                scores[0, division, place] = word_f1(told, page.text)
                scores[1, division, place] = word_f1(
                    auto.extract(tree, None, is_markdown=False, model=model), page.text
                )
    return {"auto": scores[0].mean(0).tolist(), "blocks": scores[1].mean(0).tolist()}


def divided(kinds: Sequence[str], seed: int) -> Any:
    """A fold for each page, with about the same number of each kind in all of them."""
    order = np.random.default_rng(seed).permutation(len(kinds))
    seen: Counter[str] = Counter()
    folds = np.zeros(len(kinds), int)
    for place in order:
        folds[place] = seen[kinds[place]] % FOLDS
        seen[kinds[place]] += 1
    return folds


def kind_of(page: MarkedPage) -> str:
    return str(page.gold.get("page_type") or "news article")


def by_kind(marked: Sequence[MarkedPage], scores: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    kinds = np.array([kind_of(page) for page in marked])
    table = {}
    for name, values in scores.items():
        every = np.array(values)
        table[name] = {"all": round(float(every.mean()), 4)}
        table[name] |= {str(kind): round(float(every[kinds == kind].mean()), 3) for kind in np.unique(kinds)}
    return table


def segments_f1(found: Sequence[MarkedPage], texts: dict[str, str]) -> float:
    right = missed = wrong = 0
    for page in found:
        text = " ".join(texts[page.url].split())
        hits = sum(" ".join(segment.split()) in text for segment in page.gold["with"])
        right += hits
        missed += len(page.gold["with"]) - hits
        wrong += sum(" ".join(segment.split()) in text for segment in page.gold["without"])
    return round(2 * right / (2 * right + missed + wrong), 4)


if __name__ == "__main__":
    main()
