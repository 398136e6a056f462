"""What the distance of two tokens adds to the score of their attention, put together from products per position.

DeBERTa adds the product of a token's query with the key of a relative position, and that of the other token's key with
the query of the same position. Both products exist for each token and position; here they are read for each pair.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill.kernels.compiler import float_kernel

# Keys whose products are read together: for the next query they are still in the nearest cache.
_KEYS_AT_ONCE = 64


@float_kernel
def distance_bias(
    of_queries: Any, of_keys: Any, query_steps: Any, key_steps: Any, places: Any, lengths: Any, head: int, out: Any
) -> None:
    """Write the bias of one head for documents whose tokens follow each other.

    Args:
        of_queries: For each token, the product of its query with each position, still to be multiplied by its step.
        of_keys: For each token, the product of its key with each position, likewise.
        query_steps: The factors of the first products, one for each token.
        key_steps: The factors of the others.
        places: The number of the position of each distance, from the most negative one on; 0 is in the middle.
        lengths: The tokens of each document.
        head: The number of the head.
        out: By document, head, query and key; only what belongs to real tokens is written.
    """
    middle = len(places) // 2
    start = 0
    for number in range(len(lengths)):
        length = lengths[number]
        for block in range(0, length, _KEYS_AT_ONCE):
            end = min(block + _KEYS_AT_ONCE, length)
            keys, steps = of_keys[start:], key_steps[start:]
            for query in range(length):
                row = out[number, head, query]
                products = of_queries[start + query]
                step = query_steps[start + query]
                near = places[middle + query - end + 1 :]
                for key in range(block, end):
                    place = near[np.uint64(end - 1 - key)]
                    row[key] = products[place] * step + keys[key, place] * steps[key]
        start += length


def compile_all() -> None:
    """Load the kernel from the cache on disk, or compile it."""
    products, steps = np.zeros((1, 1), np.float32), np.ones(1, np.float32)
    places, lengths = np.zeros(2, np.uint32), np.ones(1, np.int64)
    distance_bias(products, products, steps, steps, places, lengths, 0, np.zeros((1, 1, 1, 1), np.float32))
