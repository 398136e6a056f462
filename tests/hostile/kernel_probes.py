"""Every compiled kernel, called with arrays in guarded memory: `PROBES` by name, each for a column of arbitrary bytes.

Run as a program (`python -m tests.hostile.kernel_probes FIRST COUNT`) to try columns by number, as the tests do in a
process whose kernels check the bounds of every array.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import gristmill.kernels
from gristmill.kernels import (
    distance_bias,
    hashing,
    int8_rows,
    json_array,
    json_scan,
    json_values,
    json_write,
    line_rules,
    linear_text,
    loose_hashing,
    markup_scan,
    minhash,
    ngram_search,
    ngrams,
    ngrams_joined,
    packing,
    passage_cut,
    pii_scan,
    repeats,
    shingles,
    sorting,
    text_characters,
    text_clean,
    text_cuts,
    text_edit,
    text_layout,
    text_lines,
    text_phrases,
    text_search,
    text_tokens,
    text_units,
    text_words,
    union_find,
    url_lists,
    url_normal,
    url_parts,
    url_terms,
    utf8,
    vector_search,
    windows,
)
from gristmill.kernels.compiler import all_kernels
from gristmill.kernels.machine import BLOCK, WIDTH
from gristmill.kernels.text_column import TextColumn, word_spans
from gristmill.kernels.unicode_classes import CODE_POINTS
from gristmill.stages.text.filters import fasttext_model
from gristmill.stages.text.filters.statistics import BOILERPLATE_PHRASES, PLACEHOLDER_PHRASES, POLICY_PHRASES
from tests.hostile.guarded import guarded

BROKEN = [
    b"", b"\0", b"\xff", b"\xff" * 9, b"\xf0", b"\xf0\x9f", b"\xf0\x9f\x98", b"\xe2", b"\xe2\x80", b"\xc2", b"\xc3(",
    b"\x80", b"\xbf" * 40, b"\xc0\xaf", b"\xc0\x80", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf", b"\xf8\x88\x80\x80\x80",
    b"\xfc\x84\x80\x80\x80\x80", b"\xed\xa0\x80", b"\xed\xa0\x80\xed\xb0\x80", b"\xf4\x90\x80\x80", b"\xf7\xbf\xbf\xbf",
    b"a\xcc", b"\xef\xbb\xbf", b"http\xc5", b"https://\xe2", b"[\xd9", b"[1\xf0\x9f", b"...\xe2\x80", b"read more\xf1",
    b"\"\\u12", b"\"\\", b"{\"", b"{\"a\":\"\\ud800", b"[" * 50, b"{\"a\":" * 30, b"-", b"tru", b"1e",
    b"{\"\xff\": \"\xfe\"}",
]  # fmt: skip
"""What ends in the middle of something."""
WHOLE = [
    b"words and more words", b"the quick brown fox. " * 9, "été 漢字 👩‍👩‍👧 \u3000\u2028x".encode(), b" \t\r\n" * 20,
    b"a" * 300,
    b"# - \xe2\x80\xa2 x\n" * 12, b"terms of use cookie policy javascript lorem ipsum { }", "K\u212a cookie".encode(),
    b"http://a.b/c www.x.y https://porn.z", b"DE89370400440532013000 a@b.cd 1.2.3.4 fe80::1 +1 555 123 4567",
    b'{"text": "a\\n\\u00e9", "id": 7, "deep": [{"x": [1.5e3, null, true]}]}', b'{"a": 1, "a": 2}',
    b'[{"a":\n 1},\n 2]',
    b'**bold** _it_ [a](b) "quoted"\n', b"__label__x </s> word", b"\n\n\n", b'{"text": ""}', b"{}", b"x\r\ny\x0bz\x1c",
]  # fmt: skip
SHINGLES = 4


class Given(NamedTuple):
    """A column, all of its arrays in guarded memory, and a source of numbers."""

    data: Any
    offsets: Any
    valid: Any
    rng: np.random.Generator

    @property
    def column(self) -> TextColumn:
        return TextColumn(self.data, self.offsets, self.valid)

    @property
    def spans(self) -> tuple[Any, Any]:
        """Starts and ends that a kernel may write to."""
        return guarded(self.offsets[:-1], writeable=True), guarded(self.offsets[1:], writeable=True)


def texts(number: int, *, sound: bool = False) -> list[bytes]:
    """The rows of column `number`: broken, whole, cut, glued together and random; `sound` for valid UTF-8 only."""
    rng = np.random.default_rng(number)
    rows = []
    for _ in range(int(rng.integers(0, 14))):
        pieces = [*WHOLE, *(() if sound else BROKEN)]
        row = b"".join(pieces[int(rng.integers(len(pieces)))] for _ in range(int(rng.integers(0, 4))))
        change = int(rng.integers(8))
        if change == 0:
            row = row[: int(rng.integers(0, len(row) + 1))]
        elif change == 1:
            row = rng.integers(0, 256, int(rng.integers(0, 200))).astype(np.uint8).tobytes()
        elif change == 2:
            row = row * int(rng.integers(1, 30))
        elif change == 3 and row:
            at = int(rng.integers(len(row)))
            row = row[:at] + rng.bytes(1) + row[at + 1 :]
        rows.append(row.decode("utf-8", "ignore").encode() if sound else row)
    if number % 50 == 49:
        rows.append((rows[-1] if rows else b"w" if sound else b"\xf0") * 20_000)
    return rows


def column(number: int, *, sound: bool = False) -> Given:
    """Column `number`, at either edge of its memory, and now and then a slice that begins later in it."""
    rows, rng = texts(number, sound=sound), np.random.default_rng(number)
    lead = b"before \xf0\x9f\x98\x80"[: int(rng.integers(0, 12))] if number % 3 == 0 and not sound else b""
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64) + len(lead)
    data = guarded(np.frombuffer(lead + b"".join(rows), np.uint8), at_start=number % 4 == 1)
    return Given(data, guarded(offsets), guarded(rng.integers(0, 5, len(rows)) > 0, writeable=True), rng)


def _edit_lines(given: Given) -> None:
    words = guarded(np.frombuffer(b"{}the", np.uint8))
    sizes = guarded(np.array([0, 0, 0, 1, 2]))  # none of size 0 or 1, one of size 2, one of size 3
    text_edit.remove_lines(given.data, given.offsets, words, guarded(np.array([0, 2, 5])), sizes)


def _slices(given: Given) -> None:
    word, other = guarded(np.frombuffer(b"a", np.uint8)), guarded(np.frombuffer(b"x\xf0", np.uint8))
    for left, right in ((0, 0), (1, 1), (2, 2), (1, 2), (2, 1)):
        for first, last in ((0, 3), (-3, -1), (5, 2), (10**9, -(10**9))):
            text_edit.slice_spans(given.data, given.offsets, left, first, word, True, right, last, other, False, True)


def _splices(given: Given) -> None:
    starts, ends = given.spans
    text_edit.gather_spans(given.data, starts, ends)
    words = guarded(np.frombuffer(b"<x>", np.uint8))
    keep = guarded(np.flatnonzero(ends > starts))
    choices = guarded(np.zeros(len(keep), np.int64))
    chosen = guarded(starts[keep]), guarded(ends[keep])
    text_edit.splice(given.data, given.offsets, *chosen, choices, words, guarded(np.array([0, 3])))


def _candidates(given: Given) -> None:
    for room in (0, 3, 5000):
        places = [guarded(np.zeros(room, np.int64), writeable=True) for _ in range(3)]
        pii_scan.find_candidates(given.data, given.offsets, pii_scan.CLASSES, pii_scan.ACCOUNT_SIZES, *places)


def _linear(given: Given) -> None:
    for bits in (1, 10, 20):
        linear_text.linear_features(given.data, given.offsets, bits)
        buckets = guarded(np.unique(given.rng.integers(0, 1 << bits, 9)))
        table = guarded(linear_text.bucket_table(buckets))
        weights, rarity = guarded(np.ones((len(buckets), 2), np.float32)), guarded(np.ones(len(buckets), np.float32))
        bias = guarded(np.zeros(2, np.float32))
        linear_text.linear_scores(given.data, given.offsets, bits, buckets, table, weights, rarity, bias)


@cache
def _model() -> Any:
    return fasttext_model.load(fasttext_model.default_model_path())


def _language(given: Given) -> None:
    alive = given.valid
    _model().predict(given.column, starts=guarded(given.offsets[:-1]), ends=guarded(given.offsets[1:]), alive=alive)


def _shingle(given: Given) -> None:
    tables = shingles.word_tables()
    rows = guarded(np.arange(len(given.offsets) - 1)[given.valid])
    flips, factors = minhash.hash_factors(6, 1)
    for size, unit in ((1, 0), (SHINGLES, 0), (SHINGLES, 1), (24, 1)):
        values, bounds = shingles.shingle_sets(given.data, given.offsets, rows, *tables, size, unit)
        minhash.band_hashes(
            given.data, given.offsets, *tables, size, unit, flips, factors, 3, 2, np.empty(1, np.uint32)
        )
        minhash.listed_shingles(given.data, given.offsets, *tables, size, unit)
        values, bounds = guarded(values), guarded(bounds)
        minhash.signature_sets(values, bounds, flips, factors)
        if len(rows):
            pairs = [guarded(given.rng.integers(0, len(rows), 8)) for _ in range(2)]
            shingles.jaccard_pairs(values, bounds, values, bounds, *pairs)
            shingles.jaccard_lists(values, bounds, values, bounds, *pairs)


def _benchmark_grams(given: Given) -> None:
    tables = shingles.word_tables()
    hashes, bounds, plain, places = map(guarded, ngram_search.index_words(given.data, given.offsets, *tables))
    sizes = guarded(np.minimum(np.diff(bounds), 2))
    grams, words = ngram_search.gram_postings(hashes, bounds, sizes, sizes)
    order = np.argsort(grams, kind="stable")
    grams, words = guarded(grams[order]), guarded(words[order])
    gram_sizes = guarded(sizes[np.searchsorted(bounds, words, "right") - 1].astype(np.uint8))
    heads = np.flatnonzero(ngram_search.distinct_grams(grams, words, gram_sizes, plain, places))
    distinct, distinct_sizes = guarded(grams[heads]), guarded(gram_sizes[heads])
    directory = np.searchsorted(distinct, np.arange(16, dtype=np.uint64) << np.uint64(60)).astype(np.uint32)
    directory = guarded(np.append(directory, np.uint32(len(distinct))))
    ngram_search.make_filter(distinct, 4)
    everything = guarded(np.full(32, ~np.uint64(0)))
    found = ngram_search.search_grams(
        given.data, given.offsets, *tables, guarded(np.array([1, 2])), distinct, distinct_sizes,
        guarded(places[words[heads]]), directory, 4, everything, guarded(np.array([4, 4])), plain,
    )  # fmt: skip
    rows, hits, firsts, lasts = map(guarded, found)
    hit_bounds = guarded(np.searchsorted(rows, np.arange(len(given.offsets))))
    postings = guarded(np.append(heads, len(grams)))
    searched = guarded(np.diff(bounds))
    pairs = ngram_search.score_items(
        hit_bounds, hits, firsts, lasts, distinct_sizes, postings, words, bounds, searched, 0.5
    )
    texts, _, _, spans, starts, ends = pairs
    first = np.searchsorted(texts, np.arange(len(given.offsets)))
    passage_cut.cut_passages(given.data, given.offsets, guarded(spans[first]), guarded(starts), guarded(ends), 2, 3)
    passage_cut.excerpts(given.data, guarded(given.offsets[:-1]), guarded(given.offsets[1:]), 7)


def _words(given: Given) -> None:
    plain = given.column
    text_words.word_counts(plain, given.valid)
    for words in (text_tokens.token_spans(plain, given.valid), _given_words(given)):
        text_words.word_counts(plain, given.valid, words=words)
        text_tokens.token_counts(words, given.valid, ("the", "be", "of"))
        ngrams.ngram_counts(plain, given.valid, top=(1, 2), duplicate=(2, 3), words=words)
        ngrams_joined.joined_duplicates(words, given.valid, (2, 5))
    for weigh in (False, True):
        ngrams.ngram_counts(plain, given.valid, top=(1, 2, 4), duplicate=(2, 5, 10), weigh=weigh)


def _given_words(given: Given) -> Any:
    """Words that another splitter found: one for each row, empty ones too."""
    starts, ends = given.spans
    spans = word_spans(given.data, starts, ends, np.arange(len(given.offsets)))
    return spans._replace(starts=guarded(spans.starts), ends=guarded(spans.ends), bounds=guarded(spans.bounds))


def _searches(given: Given) -> None:
    for needle in ("", "a", "\n", "the the", "\U0001f600", "\udc80"):
        for place in (text_search.ANYWHERE, text_search.PREFIX, text_search.SUFFIX):
            for first in (None, 0, 1, 10**9):
                text_search.contains(given.column, given.valid, needle, place=place, first_chars=first)
    text_search.suspicious_rows(given.data, given.offsets)
    sets = guarded(np.resize(given.rng.integers(0, 4, 999).astype(np.uint8), CODE_POINTS))
    starts, ends = guarded(given.offsets[:-1]), guarded(given.offsets[1:])
    text_characters.count_sets(given.data, given.offsets, starts, ends, given.valid, sets)


def _clean(given: Given) -> None:
    loose = {"max_word_chars": None, "needs_end_mark": False, "min_words": None, "min_sentences": None}
    text_clean.clean_lines(given.column, given.valid, policy_phrases=POLICY_PHRASES)
    text_clean.clean_lines(given.column, given.valid, policy_phrases=POLICY_PHRASES, **loose)  # type: ignore[arg-type]
    text_clean.clean_lines(given.column, given.valid, policy_phrases=POLICY_PHRASES, needs_end_mark=False, min_words=0)


def _scan_records(given: Given) -> None:
    base, size = given.data.ctypes.data, len(given.data)
    json_scan.find_newlines(base, size // 3, size, guarded(np.zeros(size, np.int64), writeable=True))
    starts, ends = given.spans
    names = [b"text", b"a", "é".encode()]
    firsts, lasts, kinds, status, _ = json_scan.scan_records(base, size, starts, ends, names)
    room = int(np.maximum(lasts - firsts, 0).sum(axis=1).max(initial=0)) + BLOCK
    for name in range(len(names)):
        out = guarded(np.zeros(room, np.uint8), writeable=True)
        spans = guarded(firsts[name], writeable=True), guarded(lasts[name], writeable=True)
        filled = guarded(np.zeros(len(starts) + 1, np.int64), writeable=True)
        json_scan.decode_strings(base, size, *spans, guarded(kinds[name], writeable=True), out, filled)
    good = status == json_values.GOOD
    starts, ends, firsts, lasts, kinds = starts[good], ends[good], firsts[:, good], lasts[:, good], kinds[:, good]
    total = int((ends - starts).sum())
    starts, ends = guarded(starts, writeable=True), guarded(ends, writeable=True)
    dropped = guarded(np.frombuffer(b"textid", np.uint8), writeable=True), guarded(np.array([0, 4, 6]), writeable=True)
    out = guarded(np.zeros(total + BLOCK, np.uint8), writeable=True)
    filled = guarded(np.zeros(len(starts) + 1, np.int64), writeable=True)
    json_scan.drop_members(base, size, starts, ends, *dropped, out, filled)
    for separator in (-1, 10):
        out = guarded(np.zeros(total + (separator >= 0) * len(starts), np.uint8), writeable=True)
        json_write.gather(base, starts, ends, separator, out)
    _splice_records(base, starts, ends, firsts[:2], lasts[:2], kinds[:2])


def _splice_records(base: int, starts: Any, ends: Any, firsts: Any, lasts: Any, kinds: Any) -> None:
    new = guarded(np.frombuffer(b'"new"', np.uint8))
    addresses = guarded(np.full(kinds.shape, new.ctypes.data), writeable=True)
    lengths = guarded(np.where(np.arange(kinds.size).reshape(kinds.shape) % 3, len(new), -1), writeable=True)
    keys = guarded(np.frombuffer(b'"text":"a":', np.uint8), writeable=True)
    key_offsets = guarded(np.array([0, 7, 11]), writeable=True)
    added = ((kinds == json_values.MISSING) & (lengths >= 0)).sum(axis=1) @ (np.diff(key_offsets) + 1)
    room = int((ends - starts).sum()) + len(starts) + int(np.maximum(lengths, 0).sum()) + int(added)
    parts = [guarded(part, writeable=True) for part in (firsts, lasts, kinds)]
    out = guarded(np.zeros(room, np.uint8), writeable=True)
    json_write.splice_records(base, starts, ends, *parts, addresses, lengths, keys, key_offsets, out)
    members = np.maximum(lengths, 0).sum() + (lengths >= 0).sum() * 9 + 3 * len(starts)
    filled = guarded(np.zeros(len(starts) + 1, np.int64), writeable=True)
    out = guarded(np.zeros(int(members), np.uint8), writeable=True)
    json_write.join_members(addresses, lengths, keys, key_offsets, 10, out, filled)


def _write_strings(given: Given) -> None:
    flags = guarded(given.valid.astype(np.uint8), writeable=True)
    offsets = guarded(given.offsets, writeable=True)
    for valid in (flags, guarded(np.empty(0, np.uint8), writeable=True)):
        json_write.quote_strings(given.data.ctypes.data, offsets, valid)


def _cut_array(given: Given) -> None:
    for room in (WIDTH + 1, WIDTH + 7, len(given.data) + 2 * WIDTH):
        state = guarded(np.zeros(json_array.STATE_SIZE, np.int64), writeable=True)
        at, rounds = 0, 0
        while at < len(given.data) and rounds < 300:
            target = guarded(np.zeros(room, np.uint8), writeable=True)
            count = len(given.data) - at
            json_array.cut_elements(given.data.ctypes.data + at, count, target.ctypes.data, room, state)
            at += int(state[json_array.USED])
            rounds += 1


def _utf8(given: Given) -> None:
    starts, ends = given.spans
    invalid = guarded(np.zeros(len(starts), np.bool_), writeable=True)
    count = utf8.find_invalid_utf8(given.data.ctypes.data, starts, ends, invalid)
    found = utf8.invalid_rows(given.data, given.offsets)
    rows = [given.data[first:last].tobytes() for first, last in zip(starts, ends, strict=True)]
    assert found.tolist() == invalid.tolist() == [not _is_utf8(row) for row in rows]
    assert count == found.sum()
    lying = guarded(np.where(given.rng.random(len(given.offsets)) < 0.3, -(2**62), given.offsets) * 3)
    utf8.invalid_rows(given.data, lying)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _hash(given: Given) -> None:
    hashing.hash_spans(given.data, given.offsets, given.valid)
    hashing.second_hashes(given.data, given.offsets)
    loose_hashing.loose_hashes(given.data, given.offsets)


def _phrases(given: Given) -> None:
    phrases = text_phrases.compile_phrases(BOILERPLATE_PHRASES, PLACEHOLDER_PHRASES)
    text_phrases.phrase_counts(given.column, given.valid, phrases)


def _groups(given: Given) -> None:
    count = len(given.offsets)
    firsts, seconds = (guarded(given.rng.integers(0, count, 30)) for _ in range(2))
    parents = guarded(np.arange(count), writeable=True)
    union_find.join(parents, firsts, seconds)
    union_find.settle(parents)
    vector_search.chain_ends(guarded(np.minimum(given.rng.integers(0, count, count), np.arange(count))))
    keys = given.rng.integers(0, 1 << 63, 2500).astype(np.uint64)
    sorting.stable_order(guarded(keys))
    wanted = np.unique([keys.min(), keys.max(), *keys[::3]])
    bits, shift = sorting.key_bits(wanted)
    sorting.shared_keys(guarded(np.sort(keys)), guarded(wanted), guarded(bits), shift)
    hashes = np.sort(given.rng.integers(0, 1 << 11, 2500).astype(np.uint64))
    contents, documents = np.arange(2500, dtype=np.uint64) // 3, np.arange(2500, dtype=np.uint64)
    for wide in (2, 50):
        union_find.group_pairs(guarded(hashes), guarded(contents), guarded(documents), wide)
    bounds = np.minimum(np.arange(count) * 2, 30)
    chosen, others = guarded(np.arange(count), writeable=True), guarded(given.rng.integers(0, count, 30))
    union_find.leaders(chosen, 0, guarded(bounds[: count or 1]), others, guarded(given.rng.random(30)))
    lengths = guarded(np.diff(given.offsets))
    union_find.limited_groups(guarded(np.arange(count - 1) // 3), lengths, 2, 50)
    pieces = guarded(1 + given.rng.integers(0, 20, 60), writeable=True)
    packing.best_fit(pieces, guarded(np.argsort(-pieces, kind="stable"), writeable=True), 20)


def _vectors(given: Given) -> None:
    rows = len(given.offsets) - 1
    odd = np.array([0.0, np.nan, np.inf, -np.inf, 1e38, 5e-324, -1.0, 3.0])
    matrix = guarded(odd[given.rng.integers(0, len(odd), (rows, 5))])
    vectors, usable = vector_search.rounded_vectors(matrix, 1000.0)
    vectors = guarded(vectors)
    assert not usable[~np.isfinite(matrix).all(axis=1)].any()
    labels = guarded(given.rng.integers(0, 3, rows))
    sums = [guarded(np.zeros(shape, np.int64), writeable=True) for shape in ((3, 5), (3,))]
    vector_search.add_vectors(vectors, labels, *sums)
    squares = guarded(vector_search.squared_lengths(vectors))
    scores = guarded(odd[given.rng.integers(0, len(odd), (rows, 4))].astype(np.float32))
    centroids = guarded(given.rng.integers(-9, 9, (4, 5)).astype(np.int16))
    for most in (0, 2, 9):
        vector_search.visited_clusters(scores, centroids, most, 0.5)
    if rows:
        products = guarded(odd[given.rng.integers(0, len(odd), (rows, rows))].astype(np.float32))
        places = guarded(given.rng.permutation(rows))
        near = guarded(np.zeros(rows), writeable=True), guarded(np.full(rows, -1), writeable=True)
        vector_search.update_nearest(products, 0, 0, squares, places, 0.5, *near)


def _distances(given: Given) -> None:
    lengths = given.rng.integers(1, 70, 3)
    tokens, longest, positions = int(lengths.sum()), int(lengths.max()), 5
    scores = np.zeros((3, longest, longest), np.float32)
    products = given.rng.random((2, tokens, positions), np.float32)
    places = given.rng.integers(0, positions, 2 * longest).astype(np.uint32)
    arrays = (scores, *products, places, lengths)
    distance_bias.add_distances(*(guarded(array, writeable=True) for array in arrays))


def _urls(given: Given) -> None:
    starts, ends = given.spans
    alive = guarded(np.ones(len(starts), np.bool_), writeable=True)
    table = guarded(url_lists.make_table(np.array([9, 17, 25], np.uint64)))
    terms = url_terms.compile_terms(words=["a"], soft_words=["b"], sequences=["the", "he"])
    names = guarded(np.frombuffer(b"utm_*a", np.uint8)), guarded(np.array([0, 5, 6]))
    url_lists.word_keys(given.data, given.offsets, 1)
    lines = url_lists.entry_spans(given.data)
    for bare in (False, True):
        parts = guarded(url_parts.url_parts(given.data, starts, ends, alive, bare), writeable=True)
        url_lists.list_keys(given.data, parts)
        url_lists.find_listed(given.data, parts, alive, table)
        url_lists.find_extensions(given.data, parts, alive, table)
        url_terms.count_terms(given.data, parts, alive, terms)
        url_normal.normal_urls(given.data, starts, parts, *names, bare, not bare)
    url_parts.url_parts(given.data, *lines, np.ones(lines.shape[1], np.bool_), True)


def _markup(given: Given) -> None:
    for first, last in pairwise(given.offsets.tolist()):
        markup_scan._scan(given.data[first:last], markup_scan._KEYS, markup_scan._CELL)


def _units(given: Given) -> None:
    tables = [guarded(table) for table in text_units.unit_tables()]
    count = len(given.offsets) - 1
    keys = guarded(np.arange(count, dtype=np.uint64), writeable=True)
    phrases = [guarded(array) for array in line_rules.phrase_table(["we use cookies", "ab"])]
    for kind in (text_units.LINE, text_units.PARAGRAPH, text_units.SENTENCE):
        starts, ends, bounds = text_units.find_units(given.data, given.offsets, kind, 1, *tables)
        starts, ends, bounds = (guarded(array, writeable=True) for array in (starts, ends, bounds))
        rows = guarded(np.repeat(np.arange(count), np.diff(bounds)), writeable=True)
        hashes = text_units.unit_hashes(
            given.data, starts, ends, bounds, keys, guarded(text_units.letter_table(case=False, punctuation=False))
        )
        first, second = (guarded(half, writeable=True) for half in hashes)
        repeats.first_and_counts(first, second, rows)
        ones = guarded(np.ones(len(first), np.int64), writeable=True)
        order = guarded(np.argsort(first, kind="stable"), writeable=True)
        repeats.repeated_rows(order, first, second, first, ones, ones, 1)
        table = guarded(repeats.build_lookup(first, second, second), writeable=True)
        repeats.look_up(table, first, second, second, first, second, second)
        text_cuts.character_places(given.data, given.offsets, rows, starts, ends)
        for widen in (False, True):
            text_cuts.cut_spans(given.data, given.offsets, rows, starts, ends, widen)
        line_rules.line_faults(given.data, starts, ends, *tables, True, *phrases, 60, 2, 0.5, 2)


def _windows(given: Given) -> None:
    count = len(given.offsets) - 1
    keys = guarded(np.arange(count, dtype=np.uint64), writeable=True)
    wanted = guarded(np.ones(count, np.bool_), writeable=True)
    for unit in (windows.TOKEN, windows.BYTE):
        lists: list[Any] = [np.empty(0, np.int64), *[np.empty(0, np.uint64)] * 4, np.empty(0, np.int64)]
        for mode in (windows.CHOSEN, windows.CANDIDATES, windows.REPEATS):
            arrays = [guarded(array, writeable=True) for array in lists]
            found = windows.scan_windows(given.data, given.offsets, wanted, mode, unit, 5, 3, keys, *arrays)
            rows, first, second, places, _ = found
            documents = keys[rows]
            table = repeats.build_lookup(first, second, documents)
            lists = [table, first, second, documents, documents[::-1].copy(), places]


PROBES: dict[str, Callable[[Given], Any]] = {
    "units": _units,
    "windows": _windows,
    "utf8": _utf8,
    "characters": lambda given: text_characters.character_counts(given.column, given.valid),
    "lines": lambda given: text_lines.line_counts(given.column, given.valid),
    "layout": lambda given: text_layout.layout_counts(given.column, given.valid),
    "words, tokens and n-grams": _words,
    "phrases": _phrases,
    "urls": _urls,
    "markup": _markup,
    "searches": _searches,
    "cleaning": _clean,
    "quotation": lambda given: text_edit.quotation_spans(given.data, given.offsets),
    "markdown": lambda given: text_edit.strip_markdown(given.data, given.offsets),
    "addresses": lambda given: text_edit.remove_addresses(given.data, given.offsets),
    "lines removed": _edit_lines,
    "slices": _slices,
    "splices": _splices,
    "personal data": _candidates,
    "linear classifier": _linear,
    "language": _language,
    "shingles": _shingle,
    "n-grams of benchmarks": _benchmark_grams,
    "JSON records": _scan_records,
    "JSON strings": _write_strings,
    "JSON arrays": _cut_array,
    "hashes": _hash,
    "groups": _groups,
    "vectors": _vectors,
    "distances": _distances,
    "8 bits": lambda given: int8_rows.compile_all(),
}


def uncovered() -> list[str]:
    """The kernels that no probe has called in this process."""
    for module in pkgutil.iter_modules(gristmill.kernels.__path__):
        importlib.import_module(f"gristmill.kernels.{module.name}")
    return sorted(f"{one.py_func.__module__}.{one.py_func.__name__}" for one in all_kernels if not one.signatures)


def main(first: int, count: int) -> None:
    """Try columns by number, and tell which kernels were never called."""
    for number in range(first, first + count):
        for name, probe in PROBES.items():
            try:
                probe(column(number))
            except Exception as error:
                raise SystemExit(f"{name}, column {number}: {type(error).__name__}: {error}") from error
    print(uncovered())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
