"""Terms in URLs: whole words between separators, and letter sequences anywhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import kernel
from gristmill.kernels.text_column import Bytes, Integers, Mask, text_column
from gristmill.kernels.url_lists import BASIS, Hashes, find_slot, hash_key, hash_step, make_table, word_keys
from gristmill.kernels.url_parts import END, HOST, is_word_byte, lower_byte

# Columns of the result.
STRICT_TERMS = 0
SOFT_TERMS = 1

_STRICT = 1
_SOFT = 2


class Terms(NamedTuple):
    """Terms compiled for the kernel; make one with `compile_terms`."""

    words: Hashes
    moves: npt.NDArray[np.int32]
    ends: Mask


def compile_terms(*, words: Sequence[str], soft_words: Sequence[str], sequences: Sequence[str]) -> Terms:
    """Prepare terms in lower case.

    Args:
        words: Found as whole words, and strict.
        soft_words: Found as whole words, and counted.
        sequences: Found anywhere, also across separators, and strict.
    """
    keys = []
    for given, flag in ((words, _STRICT), (soft_words, _SOFT)):
        column = text_column([word.lower() for word in given])
        keys.append(word_keys(column.data, column.offsets, flag))
    letters = ["".join(filter(str.isalnum, sequence.lower())) for sequence in sequences]
    moves, ends = _automaton([sequence.encode() for sequence in letters])
    return Terms(make_table(np.concatenate(keys)), moves, ends)


def _automaton(sequences: Sequence[bytes]) -> tuple[npt.NDArray[np.int32], Mask]:
    """For each state and byte the next state, and in which states a sequence has been found (Aho and Corasick 1975)."""
    tree: list[dict[int, int]] = [{}]
    found = [False]
    for sequence in sequences:
        state = 0
        for byte in sequence:
            if byte not in tree[state]:
                tree[state][byte] = len(tree)
                tree.append({})
                found.append(False)
            state = tree[state][byte]
        found[state] = found[state] or state > 0
    moves = np.zeros((len(tree), 256), np.int32)
    shorter = [0] * len(tree)
    waiting = deque([0])
    while waiting:
        state = waiting.popleft()
        if state:
            moves[state] = moves[shorter[state]]
            found[state] = found[state] or found[shorter[state]]
        for byte, following in tree[state].items():
            shorter[following] = int(moves[shorter[state], byte]) if state else 0
            moves[state, byte] = following
            waiting.append(following)
    return moves, np.array(found, dtype=np.bool_)


@kernel
def _count(data, parts, alive, words, moves, ends, out):
    seen = np.full(len(words), -1, np.int64)
    for number in range(len(parts)):
        if not alive[number]:
            continue
        state, key, inside = 0, BASIS, False
        for at in range(parts[number, HOST], parts[number, END] + 1):
            byte = lower_byte(data[at]) if at < parts[number, END] else np.uint8(0)
            if is_word_byte(byte):
                state = moves[state, byte]
                out[number, STRICT_TERMS] += ends[state]
                key, inside = hash_step(key, byte), True
            elif inside:
                slot = find_slot(words, hash_key(key))
                if words[slot] != np.uint64(0) and seen[slot] != number:
                    seen[slot] = number
                    strict = words[slot] & np.uint64(_STRICT) != np.uint64(0)
                    out[number, STRICT_TERMS if strict else SOFT_TERMS] += 1
                key, inside = BASIS, False


def count_terms(data: Bytes, parts: Integers, alive: Mask, terms: Terms) -> Integers:
    """For every URL, from its host on, how many strict and how many different soft terms it holds."""
    out = np.zeros((len(parts), 2), np.int64)
    _count(data, parts, alive, *terms, out)
    return out
