"""The search for n-grams against a plain reference, over texts with punctuation, capitals and several scripts."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gristmill.kernels.ngram_search import score_items, search_grams
from gristmill.kernels.passage_cut import cut_passages, excerpts
from gristmill.kernels.shingles import word_tables
from gristmill.kernels.text_column import text_column
from gristmill.stages.deduplication.decontamination.benchmarks import Item
from gristmill.stages.deduplication.decontamination.index import GramIndex, GramRule, index_table
from gristmill.stages.deduplication.sorted_runs import RunFile, RunFiles, write_run

_CHARACTERS = "abAB ä Ä.,'- \n日本_9"
_PIECES = [
    "a",
    "b ",
    " ",
    "Word ",
    "eightlet ",
    "ninelette ",
    "don't ",
    "__",
    "x" * 70,
    "\x1f",
    "9.",
    "ä",
    "É ",
    "—",
    "日",
]
# Words are found in 64 bytes at a time, as far as a text is ASCII.
long_texts = st.lists(st.sampled_from(_PIECES), max_size=60).map("".join)
texts = st.lists(st.text(st.sampled_from(_CHARACTERS), max_size=24) | long_texts, max_size=4)


def reference_words(text: str) -> list[tuple[str, int, int]]:
    """Words with their bytes from and to: split at white space, letters and digits only, in lower case."""
    found: list[tuple[str, int, int]] = []
    word, start, end, at = "", 0, 0, 0
    for character in text + " ":
        size = len(character.encode())
        alone = character in "日本"
        if (character.isspace() or alone) and word:
            found.append((word, start, end))
            word = ""
        if alone:
            found.append((character, at, at + size))
        elif character.isalnum():
            start = start if word else at
            word, end = word + character.lower(), at + size
        at += size
    return found


def index_of(items: list[str], rule: GramRule, folder: str) -> GramIndex:
    table = index_table((Item("b", row, None, (text,)) for row, text in enumerate(items)), ["b"], rule)
    written = write_run(table, f"{folder}/index.arrow")
    return GramIndex(RunFiles((RunFile(written.path, written.size, written.hash),)))


def hits_of(index: GramIndex, documents: list[str]) -> set[tuple[int, int, int]]:
    data, offsets, _ = text_column(list(documents))
    arrays = (index.array(name) for name in ("sizes", "grams", "gram_sizes", "gram_places", "directory"))
    found = search_grams(
        data, offsets, *word_tables(), *arrays, index.directory_bits, index.array("filter"),
        index.array("filter_bits"), index.array("plain"),
    )  # fmt: skip
    return set(zip(found[0].tolist(), found[2].tolist(), found[3].tolist(), strict=True))


def pairs_of(
    index: GramIndex, documents: list[str], share: float
) -> list[tuple[int, int, float, list[int], list[int]]]:
    """Text, item, share and passages of all items of which the documents have enough."""
    data, offsets, _ = text_column(list(documents))
    arrays = (index.array(name) for name in ("sizes", "grams", "gram_sizes", "gram_places", "directory"))
    rows, *hits = search_grams(
        data, offsets, *word_tables(), *arrays, index.directory_bits, index.array("filter"),
        index.array("filter_bits"), index.array("plain"),
    )  # fmt: skip
    hits = [np.searchsorted(rows, np.arange(len(offsets))), *hits]
    for values in hits:
        values.flags.writeable = False
    names = ("gram_sizes", "posting_bounds", "postings", "item_bounds", "searched")
    texts, items, shares, bounds, starts, ends = score_items(*hits, *(index.array(name) for name in names), share)
    spans = [(starts[at:to].tolist(), ends[at:to].tolist()) for at, to in itertools.pairwise(bounds)]
    return [(*pair, *span) for *pair, span in zip(texts.tolist(), items.tolist(), shares.tolist(), spans, strict=True)]


words = st.lists(st.sampled_from("abcd"), max_size=90).map(" ".join)


@given(
    items=st.lists(words, max_size=12),
    documents=st.lists(words, min_size=1, max_size=4),
    ngram=st.integers(1, 5),
    share=st.sampled_from([0.07, 0.3, 0.55, 0.6, 1.0]),
)
def test_a_share_leaves_the_pairs_that_reach_it(
    items: list[str], documents: list[str], ngram: int, share: float, tmp_path_factory: object
) -> None:
    folder = str(tmp_path_factory.mktemp("index"))  # type: ignore[attr-defined]
    index = index_of(items, GramRule(ngram=ngram, whole_below=ngram, min_words=1), folder)
    everything = pairs_of(index, documents, 0.0)
    assert pairs_of(index, documents, share) == [pair for pair in everything if pair[2] >= share]


@given(items=texts, documents=texts, ngram=st.integers(1, 4), shortest=st.integers(1, 3))
def test_every_shared_ngram_is_found_and_nothing_else(
    items: list[str], documents: list[str], ngram: int, shortest: int, tmp_path_factory: object
) -> None:
    folder = str(tmp_path_factory.mktemp("index"))  # type: ignore[attr-defined]
    index = index_of(items, GramRule(ngram, ngram, shortest), folder)
    known: set[tuple[str, ...]] = set()
    for item in items:
        words = [word for word, _, _ in reference_words(item)]
        size = min(ngram, len(words))
        if len(words) >= shortest and size:
            known |= {tuple(words[at : at + size]) for at in range(len(words) - size + 1)}
    expected = set()
    for number, document in enumerate(documents):
        words = reference_words(document)
        for gram_size in {len(gram) for gram in known}:
            for at in range(len(words) - gram_size + 1):
                if tuple(word for word, _, _ in words[at : at + gram_size]) in known:
                    expected.add((number, words[at][1], words[at + gram_size - 1][2]))
    assert hits_of(index, documents) == expected


def test_ngrams_of_many_items_are_templates_and_not_searched(tmp_path: object) -> None:
    items = [f"read the text and choose the right answer now number {n} {n + 1} {n + 2}" for n in range(200)]
    index = index_of(items, GramRule(8, 8, 8), str(tmp_path))
    assert hits_of(index, ["Read the text and choose the right answer now!"]) == set()
    assert hits_of(index, ["the right answer now number 7 8 9"]) != set()


def reference_cut(text: str, spans: list[tuple[int, int]], window: int, least: int) -> tuple[str, int]:
    marks = [False] * len(text)
    for start, end in spans:
        for at in range(max(0, start - window), min(len(text), end + window)):
            marks[at] = True
    pieces, piece = [], ""
    for character, gone in [*zip(text, marks, strict=True), ("", True)]:
        if not gone:
            piece += character
        elif piece:
            pieces.append(piece)
            piece = ""
    return "\n\n".join(one for one in pieces if len(one) >= least), len(pieces)


@given(st.data(), st.text("aä日 ", max_size=40), st.integers(0, 3), st.integers(0, 4))
def test_cutting_leaves_what_the_reference_leaves(data: st.DataObject, text: str, window: int, least: int) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    spans = [(a, b) for a, b in zip(places[::2], places[1::2], strict=False) if b > a]
    sizes = [len(text[:at].encode()) for at in range(len(text) + 1)]
    firsts = np.array([sizes[a] for a, _ in spans], np.int64)
    lasts = np.array([sizes[b] for _, b in spans], np.int64)
    column = text_column([text])
    made, bounds, pieces = cut_passages(
        column.data, column.offsets, np.array([0, len(spans)]), firsts, lasts, window, least
    )
    if spans:
        expected, count = reference_cut(text, spans, window, least)
        assert (made.tobytes().decode(), int(pieces[0])) == (expected, count)
    else:
        assert made.tobytes().decode() == text
    assert bounds.tolist() == [0, len(made)]


def test_excerpts_end_at_a_character() -> None:
    column = text_column(["aä日本語"])
    made, bounds = excerpts(column.data, np.array([0, 1]), np.array([12, 3]), 5)
    assert [bytes(made[a:b]).decode() for a, b in itertools.pairwise(bounds)] == ["aä", "ä"]
