"""A corpus with planted copies and near-duplicates, made of the real texts in the repository.

The layout is that of ``build_corpus.py`` in the larger test data, so that the same tests read both:
``corpus-*.jsonl``, ``truth.jsonl`` (kind and group of every document, in source order) and ``pairs.jsonl`` (planted
near-duplicates with the exact Jaccard similarity of their runs of five words).
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

EDITED = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3)
"""Shares of the words that are replaced in near-duplicates."""
_WORD = re.compile(r"\w+")


def plant(data: Path, folder: Path, *, files: int = 7, chars: int = 4_000_000, seed: int = 3) -> None:
    """Write a corpus of about `chars` characters into `folder`."""
    chance = random.Random(seed)
    originals = list(_pieces(data, chance))
    texts: list[tuple[str, int, str]] = []  # kind, group, text
    pairs: list[tuple[int, int, float]] = []
    total = 0
    while total < chars and originals:
        draw = chance.random()
        if draw < 0.08 and texts:
            _, group, text = chance.choice(texts)
            texts.append(("exact_dup", group, text))
        elif draw < 0.15 and texts:
            base = chance.randrange(len(texts))
            text = _edited(texts[base][2], chance.choice(EDITED), chance)
            if texts[texts[base][1]][0].startswith("garbage") or len(_words(text)) < 80 or text == texts[base][2]:
                continue
            pairs.append((base, len(texts), similarity(texts[base][2], text)))
            texts.append(("near_dup", len(texts), text))
        elif draw < 0.19:
            texts.append(("garbage:numbers", len(texts), " ".join(f"{chance.random():.4f}" for _ in range(200))))
        else:
            texts.append(("natural", len(texts), originals.pop()))
        total += len(texts[-1][2])
    # Texts that happen to be equal are copies too.
    first: dict[str, int] = {}
    texts = [(kind, first.setdefault(text, group), text) for kind, group, text in texts]
    _write(folder, texts, pairs, files, chance)


def similarity(one: str, other: str) -> float:
    """The Jaccard similarity of the runs of five words in two texts."""
    a, b = ({tuple(words[at : at + 5]) for at in range(max(1, len(words) - 4))} for words in map(_words, (one, other)))
    return len(a & b) / len(a | b)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _pieces(data: Path, chance: random.Random) -> Iterator[str]:
    """Real texts in shuffled order, cut at line ends to about 200 to 20,000 characters."""
    texts = []
    for path in [*sorted((data / "texts").glob("*.jsonl.gz")), data / "lid" / "udhr.jsonl.gz"]:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)["text"] for line in lines]
    pieces = []
    for text in texts:
        lines_left = text.split("\n")
        while lines_left:
            size, piece = int(min(20_000, chance.lognormvariate(7.6, 1.0))), []
            while lines_left and sum(map(len, piece)) < size:
                piece.append(lines_left.pop(0))
            pieces.append("\n".join(piece).strip())
    chance.shuffle(pieces)
    return iter([piece for piece in pieces if piece])


def _edited(text: str, share: float, chance: random.Random) -> str:
    """The text with a share of its words replaced."""
    words = sorted(set(_words(text)))
    return _WORD.sub(lambda found: chance.choice(words) if chance.random() < share else found[0], text)


def _write(
    folder: Path,
    texts: list[tuple[str, int, str]],
    pairs: list[tuple[int, int, float]],
    files: int,
    chance: random.Random,
) -> None:
    order = list(range(len(texts)))
    chance.shuffle(order)
    names = {number: f"doc-{place:06d}" for place, number in enumerate(order)}
    per_file = -(-len(order) // files)
    for number in range(files):
        rows = [{"id": names[one], "text": texts[one][2]} for one in order[number * per_file : (number + 1) * per_file]]
        _lines(folder / f"corpus-{number:05d}.jsonl", rows)
    _lines(folder / "truth.jsonl", [{"id": names[one], "kind": texts[one][0], "group": texts[one][1]} for one in order])
    _lines(folder / "pairs.jsonl", [{"a": names[one], "b": names[two], "j_word5": near} for one, two, near in pairs])


def _lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
