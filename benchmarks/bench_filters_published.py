"""Do the published sets (Gopher, C4, FineWeb) decide as datatrove 0.10.1 does, and how fast is each?

Runs both on real documents and on generated Unicode, with our own splitting of words and with spaCy's, and compares
decisions, reasons and, for C4, the cleaned texts. Documents on which the peer raises are left out and counted.

    python benchmarks/bench_filters_published.py --peer PATH_TO_PEER_PYTHON --texts FOLDER_WITH_JSONL_GZ
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from bench_filters_agreement import generated_texts, real_texts

SETS = ("GopherQualityFilter", "GopherRepetitionFilter", "C4QualityFilter", "FineWebQualityFilter")

# The peer's reason for each of our reasons.
REASONS = {
    "GopherQualityFilter": {
        "too_few_words": "gopher_short_doc",
        "too_many_words": "gopher_long_doc",
        "words_too_short": "gopher_below_avg_threshold",
        "words_too_long": "gopher_above_avg_threshold",
        "too_many_hashes": "gopher_too_many_hashes",
        "too_many_ellipses": "gopher_too_many_ellipsis",
        "too_many_bullets": "gopher_too_many_bullets",
        "too_many_trailing_ellipses": "gopher_too_many_end_ellipsis",
        "too_few_alphabetic_words": "gopher_below_alpha_threshold",
        "too_few_stop_words": "gopher_enough_stop_words",
    },
    "GopherRepetitionFilter": {
        "empty": "empty",
        "repeated_paragraphs": "dup_para_frac",
        "repeated_paragraph_chars": "dup_para_char_frac",
        "repeated_lines": "dup_line_frac",
        "repeated_line_chars": "dup_line_char_frac",
        **{f"top_{n}gram_repeats": f"top_{n}_gram" for n in (2, 3, 4)},
        **{f"duplicate_{n}grams": f"duplicated_{n}_n_grams" for n in (5, 6, 7, 8, 9, 10)},
    },
    "C4QualityFilter": {
        "placeholder_text": "lorem_ipsum",
        "curly_bracket": "curly_bracket",
        "too_few_sentences": "too_few_sentences",
    },
    "FineWebQualityFilter": {
        "empty": "empty",
        "too_few_finished_lines": "line_punct_ratio",
        "too_many_short_lines": "short_line_ratio",
        "repeated_line_chars": "char_dup_ratio",
        "too_many_newlines": "list_ratio",
    },
}


def peer_decisions(texts: list[str]) -> dict[str, Any]:
    """Runs in the peer's environment: per set [reason or None, text] or null where it raises, and seconds."""
    import importlib

    from datatrove.data import Document

    modules = ("gopher_quality_filter", "gopher_repetition_filter", "c4_filters", "fineweb_quality_filter")
    homes = dict(zip(SETS, modules, strict=True))
    results: dict[str, Any] = {}
    for name in SETS:
        made = getattr(importlib.import_module(f"datatrove.pipeline.filters.{homes[name]}"), name)()
        rows: list[Any] = []
        started = time.process_time()
        for number, text in enumerate(texts):
            document = Document(text=text, id=str(number))
            try:
                answer = made.filter(document)
                reason = answer[1] if isinstance(answer, tuple) else (None if answer else "dropped")
                rows.append([reason, document.text])
            except Exception:
                rows.append(None)
        results[name] = {"rows": rows, "seconds": time.process_time() - started}
    return results


def our_decisions(texts: list[str], splitter: str) -> dict[str, Any]:
    """Per set our reasons (None = kept), the cleaned texts of C4, and the seconds."""
    import importlib

    from gristmill.kernels.text_column import text_column

    homes = dict(zip(SETS, ("gopher", "gopher", "c4", "fineweb"), strict=True))
    column = text_column(list(texts))
    results: dict[str, Any] = {}
    for name in SETS:
        home = importlib.import_module(f"gristmill.stages.text.filters.published.{homes[name]}")
        made = getattr(home, name)(word_splitter=splitter)
        warm = text_column(["Warm up the kernels and the splitter. Twice."])
        made.clean(warm) if name == "C4QualityFilter" else made.evaluate(warm)
        started = time.process_time()
        if name == "C4QualityFilter":
            cleaned = made.clean(column)
            seconds = time.process_time() - started
            reasons = [cleaned.reason(row) for row in range(len(texts))]
            results[name] = {"reasons": reasons, "texts": cleaned.texts.to_pylist(), "seconds": seconds}
        else:
            cascade = made.cascade
            result = made.evaluate(column)
            seconds = time.process_time() - started
            reasons = [cascade.reason(result, row) for row in range(len(texts))]
            results[name] = {"reasons": reasons, "seconds": seconds}
    return results


def compare(texts: list[str], peer: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Per set, how many decisions, reasons and texts are the same."""
    report: dict[str, Any] = {}
    for name in SETS:
        raised = same = same_reason = same_text = kept_by_both = 0
        example = None
        for number, row in enumerate(peer[name]["rows"]):
            if row is None:
                raised += 1
                continue
            reason = ours[name]["reasons"][number]
            translated = None if reason is None else REASONS[name][reason]
            same += (translated is None) == (row[0] is None)
            same_reason += translated == row[0]
            if translated != row[0]:
                example = example or [texts[number][:300], row[0], translated]
            if name == "C4QualityFilter" and translated is None and row[0] is None:
                kept_by_both += 1
                same_text += ours[name]["texts"][number] == row[1]
        compared = len(texts) - raised
        report[name] = {
            "compared": compared,
            "peer_raised": raised,
            "same_decision": same,
            "same_reason": same_reason,
            "agreement": round(same / compared, 6),
            "peer_seconds": round(peer[name]["seconds"], 3),
            "seconds": round(ours[name]["seconds"], 3),
        }
        if name == "C4QualityFilter":
            report[name] |= {"kept_by_both": kept_by_both, "same_text": same_text}
        if example is not None and same_reason / compared > 0.99:
            report[name]["example"] = example
    return report


def main() -> None:
    """Compare, print a summary and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    peer = os.environ.get("GRISTMILL_PEER_DATATROVE")
    parser.add_argument("--peer", default=peer, help="Python of the peer's environment")
    parser.add_argument("--texts", default=os.environ.get("GRISTMILL_TEXTS"), help="folder of *.jsonl.gz with texts")
    parser.add_argument("--documents", type=int, default=3000)
    parser.add_argument("--generated", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "filters_published.json"))
    parser.add_argument("--role", choices=("compare", "peer"), default="compare", help=argparse.SUPPRESS)
    parser.add_argument("--exchange", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "peer":
        exchange = Path(options.exchange)
        exchange.write_text(json.dumps(peer_decisions(json.loads(exchange.read_text()))))
        return
    if not options.peer or not options.texts:
        parser.error("--peer and --texts are needed (or GRISTMILL_PEER_DATATROVE and GRISTMILL_TEXTS)")
    real = real_texts(Path(options.texts), options.documents)
    # Some documents one after another, so that lengths vary and repetition occurs.
    real += ["\n\n".join(real[at : at + 5]) for at in range(0, len(real) // 4, 5)]
    result: dict[str, Any] = {"peer": "datatrove 0.10.1", "seed": options.seed}
    corpora = (("real", real), ("generated", generated_texts(options.generated, options.seed)))
    for label, texts in corpora:
        with tempfile.TemporaryDirectory() as folder:
            exchange = Path(folder) / "texts.json"
            exchange.write_text(json.dumps(texts))
            command = [options.peer, __file__, "--role", "peer", "--exchange", str(exchange)]
            subprocess.run(command, check=True, stdout=sys.stderr)
            answers = json.loads(exchange.read_text())
        result[label] = {"documents": len(texts), "megabytes": sum(len(text.encode()) for text in texts) / 1e6}
        for splitter in ("spacy", "unicode"):
            result[label][splitter] = compare(texts, answers, our_decisions(texts, splitter))
    Path(options.out).write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(result, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
