"""Adds the relative-position bias to attention scores, assembled from products per position.

DeBERTa adds the product of a token's query with the key of a relative position, and that of the other token's key with
the query of the same position. Both products exist for each token and position; here they are looked up for each pair.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill.kernels.compiler import float_kernel

# Keys whose products are read together: they are still in the L1 cache for the next query.
_KEYS_AT_ONCE = 64


@float_kernel
def add_distances(scores: Any, of_queries: Any, of_keys: Any, places: Any, lengths: Any) -> None:
    """Add to the scores of one head, for documents stored one after the other.

    Args:
        scores: By document, query and key; only those of tokens that a document has are changed.
        of_queries: For each token, the product of its query with each position.
        of_keys: For each token, the product of its key with each position.
        places: The number of the position of each distance, from the most negative one on; 0 is in the middle.
        lengths: The tokens of each document.
    """
    middle = len(places) // 2
    start = 0
    for number in range(len(lengths)):
        length = lengths[number]
        keys = of_keys[start:]
        for block in range(0, length, _KEYS_AT_ONCE):
            end = min(block + _KEYS_AT_ONCE, length)
            for query in range(length):
                row = scores[number, query]
                products = of_queries[start + query]
                near = places[middle + query - end + 1 :]
                for key in range(block, end):
                    place = near[np.uint64(end - 1 - key)]
                    row[key] += products[place] + keys[key, place]
        start += length


def compile_all() -> None:
    """Load the kernel from the cache on disk, or compile it."""
    products, places = np.zeros((1, 1), np.float32), np.zeros(2, np.uint32)
    add_distances(np.zeros((1, 1, 1), np.float32), products, products, places, np.ones(1, np.int64))
