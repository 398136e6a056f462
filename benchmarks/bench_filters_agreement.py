"""Do the heuristic filters decide as NeMo Curator 1.4.0 does?

Scores real documents and generated Unicode with every filter, here and in the peer's own environment, and compares each
score and decision. Documents on which the peer raises are counted and left out; where several n-grams are the most
frequent, the peer's answer depends on its hash seed, so the score of any of them counts as equal.

    python benchmarks/bench_filters_agreement.py --peer PATH_TO_PEER_PYTHON --texts FOLDER_WITH_JSONL_GZ
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path
from typing import Any

Spec = tuple[str, str, dict[str, Any]]

FILTERS: list[Spec] = [
    *(("string", name, {}) for name in (
        "NonAlphaNumericFilter", "SymbolsToWordsFilter", "NumbersFilter", "UrlsFilter", "WhiteSpaceFilter",
        "ParenthesesFilter", "BoilerPlateStringFilter", "WordCountFilter", "PunctuationFilter",
        "WordsWithoutAlphabetsFilter", "CommonEnglishWordsFilter", "MeanWordLengthFilter", "LongWordFilter",
        "EllipsisFilter", "BulletsFilter", "PornographicUrlsFilter",
    )),
    ("string", "CommonEnglishWordsFilter", {"stop_at_false": False}),
    ("string", "UrlsFilter", {"url_regex": r"https?://[^\s]+"}),
    ("string", "SubstringFilter", {"substring": "the", "position": "any"}),
    ("string", "SubstringFilter", {"substring": "A", "position": "prefix"}),
    ("string", "SubstringFilter", {"substring": ".", "position": "suffix"}),
    *(("repetition", name, {}) for name in (
        "RepeatedLinesFilter", "RepeatedParagraphsFilter", "RepeatedLinesByCharFilter",
        "RepeatedParagraphsByCharFilter",
    )),
    *(("repetition", "RepeatingTopNGramsFilter", {"n": n, "max_repeating_ngram_ratio": ratio})
      for n, ratio in ((1, 0.2), (2, 0.2), (3, 0.18), (4, 0.16))),
    *(("repetition", "RepeatingDuplicateNGramsFilter", {"n": n, "max_repeating_duplicate_ngram_ratio": ratio})
      for n, ratio in ((2, 0.2), (5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.1))),
    *(("code", name, {}) for name in (
        "PythonCommentToCodeFilter", "NumberOfLinesOfCodeFilter", "XMLHeaderFilter", "AlphaFilter",
        "HTMLBoilerplateFilter",
    )),
    *(("code", "GeneralCommentToCodeFilter", {"language": language}) for language in (
        "text/x-c", "text/x-javascript", "text/html", "text/x-go", "text/x-ruby", "text/x-shellscript",
        "text/x-python",
    )),
]  # fmt: skip


def real_texts(folder: Path, limit: int) -> list[str]:
    """Documents spread over all files of the folder."""
    files = sorted(folder.glob("*.jsonl.gz"))
    texts: list[str] = []
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line)["text"] for line in lines]
        step = max(1, len(rows) * len(files) // limit)
        texts += [row[:200_000] for row in rows[::step]]
    return texts


def programs_and_pages(folder: Path, limit: int) -> list[str]:
    """Python sources of the standard library and, where the folder's neighbour has them, web pages."""
    import gristmill

    home = Path(os.__file__).parent
    files = [*sorted(home.glob("*.py")), *sorted(Path(gristmill.__file__).parent.rglob("*.py"))]
    texts = [file.read_text(encoding="utf-8", errors="replace")[:60_000] for file in files[:limit]]
    for archive in sorted((folder.parent / "extraction").glob("*.warc.gz")):
        with gzip.open(archive, "rb") as stream:
            pages = stream.read(60_000_000).split(b"WARC/1.0")
        texts += [page.decode("utf-8", "replace")[:200_000] for page in pages[1 : 1 + limit // 4]]
    return texts


def generated_texts(count: int, seed: int) -> list[str]:
    """Texts over all planes of Unicode, mixed with the pieces that the rules look for."""
    source = random.Random(seed)
    pieces = [
        " ", " ", " ", "\n", "\n\n", "\n\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "\x85", "\x1c", "the", "and",
        "of", "have", "The", "#", "##", "...", "…", "[...]", "(…)", "-»", "•", "● x", "read more", "READ MORE..", "1",
        "42", "٣", "(", ")", "⟨", "{", "http://a.b/c", "https://x.y/%20z", "http://", "httpss://porn.x", "https://porn.example",
        "privacy policy", "Use Coo\u212aies", "lorem ipsum", "Lorem Ipsum", "word", "a", "b", "ab", "naïve", "e\u0301",
        "\u0301", "हिन्दी", "中文", "日本語", "עברית", "👩‍👩‍👧", "🙂", "\x08", "\x00", "İ", "ſ", "ǅ", "²", "Ⅷ",
        "_", '"', "'", "!", "?", "//c", "/* d */", "/*", "<!-- e -->", "<b>", "</b>", "<p>t</p>", "# note\n", "x = 1\n",
        '"""doc"""\n', "`", "\\",
    ]  # fmt: skip
    texts = []
    for _ in range(count):
        alphabet = source.choice([pieces, pieces[:20], ["a", "b", " "], ["to", "be", "or", " ", " ", "\n"]])
        drawn = source.choices(alphabet, k=source.randrange(0, 120))
        if source.random() < 0.4:
            drawn += [_any_character(source) for _ in range(source.randrange(0, 30))]
            source.shuffle(drawn)
        texts.append("".join(drawn))
    return texts


def _any_character(source: random.Random) -> str:
    while True:
        character = chr(source.randrange(0x110000) if source.random() < 0.5 else source.randrange(0x3000))
        if unicodedata.category(character) != "Cs":
            return character


def peer_scores(texts: list[str]) -> list[list[Any]]:
    """Runs in the peer's environment: per filter and text the pairs [score, kept], or null if it raises."""
    import importlib
    import warnings

    warnings.simplefilter("ignore")
    results: list[list[Any]] = []
    for module, name, arguments in FILTERS:
        home = importlib.import_module(f"nemo_curator.stages.text.filters.heuristic.{module}")
        made = getattr(home, name)(**arguments)
        row: list[Any] = []
        for text in texts:
            try:
                scores = [made.score_document(text)]
                if name == "RepeatingTopNGramsFilter":
                    ties = _tied_scores(text, arguments["n"])
                    # Only ties among which the peer's own answer is may stand for it.
                    if any(abs(tie - scores[0]) <= 1e-9 for tie in ties):
                        scores = sorted(set(ties))
                row.append([[float(score), bool(made.keep_document(score))] for score in scores])
            except Exception:
                row.append(None)
        results.append(row)
    return results


def _tied_scores(text: str, n: int) -> list[float]:
    words = text.split()
    counts: dict[tuple[str, ...], int] = {}
    for at in range(len(words) - n + 1):
        gram = tuple(words[at : at + n])
        counts[gram] = counts.get(gram, 0) + 1
    if not counts:
        return []
    most = max(counts.values())
    ties = [" ".join(gram) for gram, count in counts.items() if count == most]
    return [(len(text) - len(text.replace(gram, ""))) / len(text) for gram in ties]


def our_scores(texts: list[str]) -> list[tuple[list[float], list[bool]]]:
    """Scores and decisions of our filters, over the whole column at once."""
    import importlib

    from gristmill.kernels.text_column import text_column
    from gristmill.stages.text.filters.statistics import TextStatistics

    column = text_column(list(texts))
    results = []
    for module, name, arguments in FILTERS:
        home = importlib.import_module(f"gristmill.stages.text.filters.heuristic.{module}")
        made = getattr(home, name)(**arguments)
        statistics = TextStatistics(column, made.needs())
        statistics.require(made.needs(), statistics.alive)
        scores = made.score_column(statistics)
        results.append((scores.tolist(), made.keep(scores).tolist()))
    return results


def compare(texts: list[str], peer: list[list[Any]]) -> dict[str, Any]:
    """Per filter, how many documents were compared and on how many score or decision differ."""
    report: dict[str, Any] = {}
    for (_, name, arguments), theirs, (scores, kept) in zip(FILTERS, peer, our_scores(texts), strict=True):
        label = name + ("" if not arguments else str(arguments))
        raised = differing_scores = differing_decisions = 0
        example = None
        for text, answers, score, keeps in zip(texts, theirs, scores, kept, strict=True):
            if answers is None:
                raised += 1
                continue
            near = [answer for answer in answers if abs(answer[0] - score) <= 1e-9]
            if not near:
                differing_scores += 1
                example = example or [text[:200], answers[:3], score]
            if not any(answer[1] == keeps for answer in (near or answers)):
                differing_decisions += 1
        report[label] = {
            "compared": len(texts) - raised,
            "peer_raised": raised,
            "scores_differ": differing_scores,
            "decisions_differ": differing_decisions,
        }
        if example is not None:
            report[label]["example"] = example
    return report


def main() -> None:
    """Compare, print a summary and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    peer = os.environ.get("GRISTMILL_PEER_NEMO")
    parser.add_argument("--peer", default=peer, help="Python of the peer's environment")
    parser.add_argument("--texts", default=os.environ.get("GRISTMILL_TEXTS"), help="folder of *.jsonl.gz with texts")
    parser.add_argument("--documents", type=int, default=4000)
    parser.add_argument("--generated", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "filters_agreement.json"))
    parser.add_argument("--role", choices=("compare", "peer"), default="compare", help=argparse.SUPPRESS)
    parser.add_argument("--exchange", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "peer":
        exchange = Path(options.exchange)
        exchange.write_text(json.dumps(peer_scores(json.loads(exchange.read_text()))))
        return
    if not options.peer or not options.texts:
        parser.error("--peer and --texts are needed (or GRISTMILL_PEER_NEMO and GRISTMILL_TEXTS)")
    texts = real_texts(Path(options.texts), options.documents)
    texts += programs_and_pages(Path(options.texts), max(options.documents // 20, 20))
    real = len(texts)
    texts += generated_texts(options.generated, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        exchange = Path(folder) / "texts.json"
        exchange.write_text(json.dumps(texts))
        command = [options.peer, __file__, "--role", "peer", "--exchange", str(exchange)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        report = compare(texts, json.loads(exchange.read_text()))
    result = {
        "peer": "nemo-curator 1.4.0",
        "real_documents": real,
        "generated_documents": len(texts) - real,
        "seed": options.seed,
        "filters": report,
    }
    Path(options.out).write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    for label, row in report.items():
        differing = f"{row['scores_differ']:5} {row['decisions_differ']:5}"
        print(f"{label:70.70} {row['compared']:6} {differing}", row.get("example", ""))


if __name__ == "__main__":
    main()
