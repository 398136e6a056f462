"""The best label of every document by a fastText model, in one compiled pass.

The method is that of Joulin et al. 2017 ("Bag of Tricks for Efficient Text Classification", arXiv:1607.01759): the mean
of the vectors of words, of their character n-grams and of word n-grams, then a softmax, a binary tree or one sigmoid
per label. Numbers, hashes and the treatment of white space follow the reference program, so that its model files
produce the same answers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.kernels.arrays import grown
from gristmill.kernels.compiler import inlined, kernel
from gristmill.kernels.machine import bit_count
from gristmill.kernels.text_column import Bytes, Integers, Mask

HIERARCHICAL = 1
NEGATIVE_SAMPLING = 2
SOFTMAX = 3
ONE_VS_ALL = 4
LOSSES = (HIERARCHICAL, NEGATIVE_SAMPLING, SOFTMAX, ONE_VS_ALL)

FNV_OFFSET = np.uint32(2166136261)
FNV_PRIME = np.uint32(16777619)
KEY_FACTOR = np.uint64(0x9E3779B97F4A7C15)
CACHE_BITS = 15
WORD_FACTOR = np.uint64(116049371)

# Places in `Model.sizes`.
_WORDS, _BUCKET, _MIN_N, _MAX_N, _WORD_NGRAMS, _LOSS, _EOS = range(7)


class Model(NamedTuple):
    """A supervised model as the kernel reads it.

    Attributes:
        sizes: Numbers of words, buckets and n-grams, the loss, and flags.
        vectors: The vector of every word and, after them, of every bucket of n-grams.
        table: An open hash table of the words: their number, or -1.
        word_bytes: The words, one after the other.
        word_offsets: Where each begins.
        bits: For pruned models, one bit per bucket that is left, 64 to a number; their vectors stand in this order.
        before: For each of those numbers, how many bits are set before it.
        output: One row per label, or per inner node of the tree.
        children: For the tree, the two children of each inner node.
    """

    sizes: Integers
    vectors: npt.NDArray[np.float32]
    table: npt.NDArray[np.int32]
    word_bytes: Bytes
    word_offsets: Integers
    bits: npt.NDArray[np.uint64]
    before: Integers
    output: npt.NDArray[np.float32]
    children: Integers


@inlined
def _hash_step(value: np.uint32, byte: np.uint8) -> np.uint32:
    # Bytes are signed in the reference.
    signed = np.uint32(byte) if byte < 128 else np.uint32(byte) | np.uint32(0xFFFFFF00)
    return np.uint32(np.uint32(value ^ signed) * FNV_PRIME)


@inlined
def _word_number(
    text: Bytes, start: int, end: int, hashed: np.uint32, table: npt.NDArray[np.int32], words: Bytes, offsets: Integers
) -> Any:
    mask = len(table) - 1
    slot = np.int64(hashed) & mask
    while table[slot] >= 0:
        word = np.int64(table[slot])
        first = offsets[word]
        if offsets[word + 1] - first == end - start:
            k = 0
            while k < end - start and words[first + k] == text[start + k]:
                k += 1
            if k == end - start:
                return word
        slot = (slot + 1) & mask
    return -1


@inlined
def _remainder(hashed: np.uint32, bucket: Any, inverse: float) -> Any:
    """`hashed % bucket`, by a multiplication, which is much faster than a division."""
    value = np.int64(hashed)
    rest = value - np.int64(value * inverse) * bucket
    if rest < 0:
        rest += bucket
    elif rest >= bucket:
        rest -= bucket
    return rest


@inlined
def _bucket_row(number: Any, first: Any, bits: npt.NDArray[np.uint64], before: Integers) -> Any:
    """The row of the vector of a bucket of n-grams; -1 if a pruned model has none."""
    if len(bits) == 0:
        return first + number
    part = bits[number >> 6]
    bit = np.uint64(1) << np.uint64(number & 63)
    if part & bit == 0:
        return -1
    return first + before[number >> 6] + bit_count(part & (bit - np.uint64(1)))


@inlined
def _add_character_ngrams(
    word: npt.NDArray[np.uint8],
    size: int,
    sizes: Integers,
    vectors: npt.NDArray[np.float32],
    bits: npt.NDArray[np.uint64],
    before: Integers,
    hidden: npt.NDArray[np.float32],
) -> int:
    """Add the vectors of the character n-grams of a word, which stands between its marks `<` and `>`."""
    added = 0
    shortest, longest = sizes[_MIN_N], sizes[_MAX_N]
    bucket = sizes[_BUCKET]
    words = sizes[_WORDS]
    inverse = 1.0 / bucket
    for i in range(size):
        if word[i] & 0xC0 == 0x80:
            continue
        hashed = FNV_OFFSET
        j = i
        n = 1
        while j < size and n <= longest:
            hashed = _hash_step(hashed, word[j])
            j += 1
            while j < size and word[j] & 0xC0 == 0x80:
                hashed = _hash_step(hashed, word[j])
                j += 1
            if n >= shortest and not (n == 1 and (i == 0 or j == size)):
                row = _bucket_row(_remainder(hashed, bucket, inverse), words, bits, before)
                if row >= 0:
                    added += 1
                    for k in range(vectors.shape[1]):
                        hidden[k] += vectors[row, k]
            n += 1
    return added


@inlined
def _label_at(text: Bytes, at: int, end: int) -> bool:
    """Whether `__label__` stands at this place."""
    if at + 9 > end or text[at] != 95 or text[at + 1] != 95 or text[at + 7] != 95 or text[at + 8] != 95:
        return False
    if text[at + 2] != 108 or text[at + 3] != 97 or text[at + 4] != 98:
        return False
    return bool(text[at + 5] == 101 and text[at + 6] == 108)


@inlined
def _log(value: float) -> float:
    return float(np.log(value + 1e-5))


@inlined
def _sigmoid_step(value: float) -> float:
    """The sigmoid as the reference tabulates it, in 512 steps from -8 to 8."""
    if value < -8.0:
        return 0.0
    if value > 8.0:
        return 1.0
    step = int((value + 8.0) * 512 / 8.0 / 2)
    return float(1.0 / (1.0 + np.exp(-(step * 16.0 / 512 - 8.0))))


@inlined
def _best_label(
    hidden: npt.NDArray[np.float64],
    loss: int,
    output: npt.NDArray[np.float32],
    children: Integers,
    scores: npt.NDArray[np.float64],
) -> tuple[int, float]:
    """The number of the best label and its probability; -1 when the tree has no path that is likely enough."""
    rows = output.shape[0]
    if loss == HIERARCHICAL:
        inner = len(children) // 2
        labels = inner + 1
        scores[2 * labels - 2] = 0.0
        for node in range(2 * labels - 2, labels - 1, -1):
            product = 0.0
            for k in range(len(hidden)):
                product += output[node - labels, k] * hidden[k]
            share = 1.0 / (1.0 + np.exp(-product))
            scores[children[2 * (node - labels)]] = scores[node] + _log(1.0 - share)
            scores[children[2 * (node - labels) + 1]] = scores[node] + _log(share)
        best = 0
        for label in range(1, labels):
            if scores[label] > scores[best]:
                best = label
        return (best, float(np.exp(scores[best]))) if scores[best] >= _log(0.0) else (-1, 0.0)
    best = 0
    for label in range(rows):
        product = 0.0
        for k in range(len(hidden)):
            product += output[label, k] * hidden[k]
        # Steps of the table are equal often; of equal labels the reference takes the last.
        scores[label] = product if loss == SOFTMAX else _sigmoid_step(product)
        if scores[label] >= scores[best]:
            best = label
    if loss == SOFTMAX:
        total = 0.0
        for label in range(rows):
            total += np.exp(scores[label] - scores[best])
        return best, float(1.0 / total + 1e-5)
    return best, scores[best] + 1e-5


@kernel
def predict_spans(
    text: Bytes,
    starts: Integers,
    ends: Integers,
    alive: Mask,
    labels_are_space: bool,
    sizes: Integers,
    vectors: npt.NDArray[np.float32],
    table: npt.NDArray[np.int32],
    words: Bytes,
    word_offsets: Integers,
    bits: npt.NDArray[np.uint64],
    before: Integers,
    output: npt.NDArray[np.float32],
    children: Integers,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The best label (-1: none) and its probability for every span of text; line ends count as spaces.

    Args:
        text: The bytes of the column.
        starts: Where each document begins.
        ends: Where it ends.
        alive: Which documents to look at.
        labels_are_space: Whether `__label__` within the text counts as a space.
        sizes: This and what follows: the fields of `Model`.
        vectors: See `Model`.
        table: See `Model`.
        words: See `Model`.
        word_offsets: See `Model`.
        bits: See `Model`.
        before: See `Model`.
        output: See `Model`.
        children: See `Model`.
    """
    rows = len(starts)
    best, probability = np.full(rows, -1, np.int64), np.zeros(rows, np.float64)
    hidden = np.zeros(vectors.shape[1], np.float64)
    pieces = np.zeros(vectors.shape[1], np.float32)
    # Words repeat: each slot caches the sum of the vectors of the word that used it last.
    keys = np.zeros(1 << CACHE_BITS, np.uint64)
    sums = np.empty((1 << CACHE_BITS, vectors.shape[1]), np.float32)
    counts = np.empty(1 << CACHE_BITS, np.int64)
    scores = np.zeros(2 * output.shape[0] + 2, np.float64)
    word = np.empty(1024, np.uint8)
    hashes = np.empty(1024, np.int32)
    word_ngrams = sizes[_WORD_NGRAMS]
    eos = sizes[_EOS]
    subwords = sizes[_MAX_N] > 0
    for row in range(rows):
        if not alive[row]:
            continue
        hidden[:] = 0.0
        added = 0
        seen = 0
        i, end = starts[row], ends[row]
        while i < end:
            byte = text[i]
            if byte == 32 or byte == 0 or (9 <= byte <= 13):
                i += 1
                continue
            if labels_are_space and byte == 95 and _label_at(text, i, end):
                i += 9
                continue
            first = i
            hashed = FNV_OFFSET
            key = np.uint64(0)
            while i < end:
                byte = text[i]
                if byte == 32 or byte == 0 or (9 <= byte <= 13):
                    break
                if labels_are_space and byte == 95 and _label_at(text, i, end):
                    break
                hashed = _hash_step(hashed, byte)
                key = np.uint64((key + np.uint64(byte) + np.uint64(1)) * KEY_FACTOR)
                key ^= key >> np.uint64(29)
                i += 1
            slot = np.int64(key >> np.uint64(64 - CACHE_BITS))
            if keys[slot] != key:
                number = _word_number(text, first, i, hashed, table, words, word_offsets)
                if number >= sizes[_WORDS] or (number < 0 and _label_at(text, first, i)):
                    continue
                if number >= 0 and number == eos:
                    break
                part = sums[slot]
                counts[slot] = 1 if number >= 0 else 0
                for k in range(len(part)):
                    part[k] = vectors[number, k] if number >= 0 else np.float32(0.0)
                if subwords:
                    size = i - first
                    if size + 2 > len(word):
                        word = np.empty(2 * size + 2, np.uint8)
                    word[0], word[size + 1] = 60, 62
                    for k in range(size):
                        word[k + 1] = text[first + k]
                    counts[slot] += _add_character_ngrams(word, size + 2, sizes, vectors, bits, before, part)
                keys[slot] = key
            for k in range(len(hidden)):
                hidden[k] += sums[slot, k]
            added += counts[slot]
            if word_ngrams > 1:
                if seen == len(hashes):
                    hashes = grown(hashes, 2 * seen)
                hashes[seen] = np.int32(hashed)
                seen += 1
        if eos >= 0:
            for k in range(len(hidden)):
                hidden[k] += vectors[eos, k]
            added += 1
        if word_ngrams > 1:
            # The end of the line is a word too: </s>.
            hashed = FNV_OFFSET
            for byte in (60, 47, 115, 62):
                hashed = _hash_step(hashed, np.uint8(byte))
            if seen == len(hashes):
                hashes = grown(hashes, seen + 1)
            hashes[seen] = np.int32(hashed)
            seen += 1
            bucket = np.uint64(sizes[_BUCKET])
            for a in range(seen):
                joined = np.uint64(np.int64(hashes[a]))
                for b in range(a + 1, min(seen, a + word_ngrams)):
                    joined = np.uint64(joined * WORD_FACTOR + np.uint64(np.int64(hashes[b])))
                    found = _bucket_row(np.int64(joined % bucket), sizes[_WORDS], bits, before)
                    if found >= 0:
                        added += 1
                        for k in range(vectors.shape[1]):
                            pieces[k] += vectors[found, k]
            for k in range(len(hidden)):
                hidden[k] += pieces[k]
                pieces[k] = 0.0
        if added:
            for k in range(len(hidden)):
                hidden[k] /= added
            best[row], probability[row] = _best_label(hidden, sizes[_LOSS], output, children, scores)
    return best, probability
