r"""Finds the word n-grams of texts in an index of n-grams: a rolling hash of words, a bit filter, and an exact check.

Words are separated by whitespace and compared in lower case, without punctuation (Brown et al. 2020, appendix C): all
characters other than letters and digits are ignored, and words that are then empty are skipped. In scripts written
without spaces, each character counts as a word.

The index is sorted by hash. `directory` says where the n-grams begin whose hashes share their highest bits, so that a
look-up reads two places. A blocked Bloom filter (Putze, Sanders and Singler 2007) comes before it: the highest bits of
a hash choose a word of 64 bits, the lowest choose three bits of it, and n-grams whose bits are not all set are turned
away. Each size of n-grams has a filter of its own: that of the few short texts stays in the cache. All n-grams of a
text go through the filter before any is looked up, without a branch, so that the processor fetches several words of the
filter at a time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.arrays import copy_items
from gristmill.kernels.byte_masks import DIGITS, LETTERS, WHITE, WIDE, byte_masks
from gristmill.kernels.compiler import inlined, kernel, leaf, routine
from gristmill.kernels.machine import bit_count, leading_zeros, trailing_zeros
from gristmill.kernels.text_column import Bytes, Integers
from gristmill.kernels.utf8 import ALL, ONE, ZERO, decode, flags_of, load_part
from gristmill.kernels.word_hashes import (
    ALONE,
    BLANK,
    LANES,
    WINDOW,
    WORD_PRIME,
    WORD_SEED,
    hash_heads,
    mix_eight,
    mixed,
)

Codes = npt.NDArray[np.uint32]
Pages = npt.NDArray[np.uint16]
Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.uint32]
Sizes = npt.NDArray[np.uint8]

LONGEST = 64
"""Maximum number of words of an n-gram."""
_BASE = np.uint64(0xD6E8FEB86659FD93)
_SIZE = np.uint64(0x9E3779B97F4A7C15)
_UNDERSCORE = np.uint32(ord("_"))
_BETWEEN = np.uint8(0x20)
_SIX = np.uint64(63)
_HEAD = 8
_MANY = 16
"""With this many non-ASCII bytes in a window, it is faster to process all of it character by character."""
_masks = byte_masks(LETTERS + DIGITS, WHITE, WIDE)
_DIGIT_BITS = 11
_DIGITS = 1 << _DIGIT_BITS
_FEW = 64
"""Up to this many numbers, sorting by comparison is no slower."""
_BLOCK_BITS = 6
"""log2 of the number of words in a block, whose items are indexed: about the length of an item."""
_SUMS = (1 << 16) - 1
"""Maximum index of an item among the sums of a text."""


@routine
def _words(data, begin, end, pages, codes, tokens, starts, ends, heads, longs):
    """Fill `tokens`, `starts` and `ends` with the hash, the first byte and the byte after the last letter of each word.

    Returns how many there are. Where a text is ASCII, words are found in 64 bytes at a time, and the first eight
    letters of several are hashed at once; `heads` and `longs` are to work with.
    """
    made = many = 0
    at = begin
    while at < end:
        letters, blank, high = _masks(data, at, end)
        left = min(end - at, WINDOW)
        inside = ALL >> np.uint64(WINDOW - left)
        wide = high & inside
        if wide != ZERO:
            inside = (wide & (~wide + ONE)) - ONE
        taken = left
        if wide != ZERO or at + left < end:
            # The last word may continue.
            taken = WINDOW - leading_zeros(blank & inside)
        if taken > 0:
            inside = ALL >> np.uint64(WINDOW - taken)
            blank &= inside
            rest = letters & inside
            while rest != ZERO:
                first = trailing_zeros(rest)
                stop = trailing_zeros(blank >> np.uint64(first)) + first
                word = rest
                if stop < WINDOW:
                    word &= (ONE << np.uint64(stop)) - ONE
                after = WINDOW - leading_zeros(word)
                rest ^= word
                starts[made], ends[made] = at + first, at + after
                length = after - first
                if bit_count(word) == length:
                    heads[made] = load_part(data, at + first, min(length, _HEAD))
                    longs[many] = made
                    many += length > _HEAD
                else:
                    token = WORD_SEED
                    while word != ZERO:
                        letter = data[at + trailing_zeros(word)]
                        token = (token ^ np.uint64(codes[np.int64(pages[0]) * 256 + letter])) * WORD_PRIME
                        word &= word - ONE
                    tokens[made], heads[made] = token, ZERO
                made += 1
            at += taken
            continue
        # Character by character, to the end of the word after the non-ASCII bytes, or further in such a text.
        stop_at = at + (WINDOW if bit_count(wide) > _MANY else trailing_zeros(wide) + 1)
        token, known = WORD_SEED, 0
        while at < end and (known > 0 or at < stop_at):
            point, width = decode(data, at)
            code = flags_of(point, pages, codes)
            if code < ALONE:
                if code != np.uint32(0) and code != _UNDERSCORE:
                    if known == 0:
                        starts[made] = at
                    token = (token ^ np.uint64(code)) * WORD_PRIME
                    known += 1
                    ends[made] = at + width
                at += width
                continue
            if known > 0:
                tokens[made], heads[made] = token, ZERO
                made += 1
                token, known = WORD_SEED, 0
            if code < BLANK:
                tokens[made], heads[made] = np.uint64(code) * WORD_SEED, ZERO
                starts[made], ends[made] = at, at + width
                made += 1
            at += width
        if known > 0:
            tokens[made], heads[made] = token, ZERO
            made += 1
    # The last eight may extend beyond the hashes: there is room, and those values are not read.
    for place in range(0, made, LANES):
        hash_heads(tokens, heads, place)
    ascii_codes = np.int64(pages[0]) * 256
    for number in range(many):
        which = longs[number]
        token = tokens[which]
        for place in range(starts[which] + _HEAD, ends[which]):
            token = (token ^ np.uint64(codes[ascii_codes + data[place]])) * WORD_PRIME
        tokens[which] = token
    for place in range(0, made, LANES):
        mix_eight(tokens, place)
    return made


@leaf
def _most_words(size):
    """The maximum number of words in a text of `size` bytes, plus room for those that are hashed at once.

    Two words have a byte or a long character between them.
    """
    return (size + 1) // 2 + 1 + LANES


@leaf
def _power(size):
    power = np.uint64(1)
    for _ in range(size):
        power *= _BASE
    return power


@kernel
def index_words(data: Bytes, offsets: Integers, pages: Pages, codes: Codes) -> tuple[Hashes, Integers, Bytes, Integers]:
    """The hashes of the words of some texts, and the words themselves as they are compared.

    A compared word is its letters in lower case, in UTF-8, and a blank after the last. Returns the hashes, where each
    text begins among them, the compared words one after the other, and where each of them begins.
    """
    rows = len(offsets) - 1
    longest = 0
    for row in range(rows):
        longest = max(longest, offsets[row + 1] - offsets[row])
    room = _most_words(longest)
    tokens, starts, ends = np.empty(room, np.uint64), np.empty(room, np.int64), np.empty(room, np.int64)
    heads, longs = np.empty(room, np.uint64), np.empty(room, np.int64)
    hashes, places = np.empty(1024, np.uint64), np.empty(1024, np.int64)
    plain = np.empty(1024, np.uint8)
    bounds = np.zeros(rows + 1, np.int64)
    filled = written = 0
    for row in range(rows):
        made = _words(data, offsets[row], offsets[row + 1], pages, codes, tokens, starts, ends, heads, longs)
        if filled + made > len(hashes):
            hashes, places = _grown(hashes, filled + made), _grown(places, filled + made)
        needed = written + 4 * (offsets[row + 1] - offsets[row]) + made
        if needed > len(plain):
            plain = _grown(plain, needed)
        for word in range(made):
            hashes[filled + word], places[filled + word] = tokens[word], written
            at = starts[word]
            while at < ends[word]:
                point, width = decode(data, at)
                code = flags_of(point, pages, codes)
                if code != np.uint32(0) and code != _UNDERSCORE:
                    written = _encode(plain, written, np.int64(code & np.uint32(0x3FFFFFFF)))
                at += width
            plain[written] = _BETWEEN
            written += 1
        filled += made
        bounds[row + 1] = filled
    return hashes[:filled].copy(), bounds, plain[:written].copy(), places[:filled].copy()


@inlined
def _grown(values, size):
    larger = np.empty(2 * size, values.dtype)
    copy_items(larger, 0, values, len(values))
    return larger


@leaf
def _encode(out, at, point):
    if point < 0x80:
        out[at] = point
        return at + 1
    if point < 0x800:
        out[at], out[at + 1] = 0xC0 | point >> 6, 0x80 | point & 0x3F
        return at + 2
    if point < 0x10000:
        out[at], out[at + 1], out[at + 2] = 0xE0 | point >> 12, 0x80 | point >> 6 & 0x3F, 0x80 | point & 0x3F
        return at + 3
    out[at], out[at + 1] = 0xF0 | point >> 18, 0x80 | point >> 12 & 0x3F
    out[at + 2], out[at + 3] = 0x80 | point >> 6 & 0x3F, 0x80 | point & 0x3F
    return at + 4


@kernel
def gram_postings(hashes: Hashes, bounds: Integers, sizes: Integers, keys: Integers) -> tuple[Hashes, Integers]:
    """The n-grams of texts whose words were hashed: the hash of each and the number of its first word.

    `sizes` says for each text how many words its n-grams have; 0 leaves it out. `keys` says how many of them, from the
    first on, are hashed.
    """
    total = 0
    for row in range(len(sizes)):
        if sizes[row] > 0:
            total += max(0, bounds[row + 1] - bounds[row] - sizes[row] + 1)
    grams, words = np.empty(total, np.uint64), np.empty(total, np.int64)
    made = 0
    for row in range(len(sizes)):
        if sizes[row] == 0:
            continue
        size = keys[row]
        power, roll = _power(size), np.uint64(0)
        # The last n-gram begins where as many words are left as it has, of which only the first may be hashed.
        for word in range(bounds[row], bounds[row + 1] - (sizes[row] - size)):
            roll = roll * _BASE + hashes[word]
            if word - bounds[row] >= size:
                roll -= hashes[word - size] * power
            if word - bounds[row] >= size - 1:
                grams[made] = mixed(roll + np.uint64(size) * _SIZE)
                words[made] = word - size + 1
                made += 1
    return grams, words


@kernel
def distinct_grams(
    grams: Hashes, words: Integers, sizes: Sizes, plain: Bytes, places: Integers
) -> npt.NDArray[np.bool_]:
    """Which of the n-grams, sorted by hash, are not the same as the one before them, compared letter by letter."""
    new = np.ones(len(grams), np.bool_)
    for number in range(1, len(grams)):
        if grams[number] != grams[number - 1] or sizes[number] != sizes[number - 1]:
            continue
        one, other = places[words[number]], places[words[number - 1]]
        left = np.int64(sizes[number])
        while left > 0 and plain[one] == plain[other]:
            left -= plain[one] == _BETWEEN
            one += 1
            other += 1
        new[number] = left > 0
    return new


@kernel
def search_grams(
    data: Bytes,
    offsets: Integers,
    pages: Pages,
    codes: Codes,
    sizes: Integers,
    grams: Hashes,
    gram_sizes: Sizes,
    gram_places: Integers,
    directory: Numbers,
    directory_bits: int,
    filter_words: Hashes,
    filter_bits: Integers,
    plain: Bytes,
) -> tuple[Integers, Integers, Integers, Integers]:
    """The n-grams of texts that are in the index: the text, the number in the index, first and last byte.

    `sizes` says how many words are hashed; each size has a filter of its own, of which `filter_bits` says how large it
    is. Hits come in the order of the texts, of `sizes`, and of their places.
    """
    rows = len(offsets) - 1
    longest = 0
    for row in range(rows):
        longest = max(longest, offsets[row + 1] - offsets[row])
    room = _most_words(longest)
    tokens, starts, ends = np.empty(room, np.uint64), np.empty(room, np.int64), np.empty(room, np.int64)
    heads, longs = np.empty(room, np.uint64), np.empty(room, np.int64)
    near, near_firsts = np.empty(room, np.uint64), np.empty(room, np.int64)
    texts, numbers = np.empty(64, np.int64), np.empty(64, np.int64)
    firsts, lasts = np.empty(64, np.int64), np.empty(64, np.int64)
    made = 0
    directory_shift = np.uint64(64 - directory_bits)
    for row in range(rows):
        count = _words(data, offsets[row], offsets[row + 1], pages, codes, tokens, starts, ends, heads, longs)
        filter_start = 0
        for which in range(len(sizes) if len(grams) > 0 else 0):
            size = sizes[which]
            passed = _filtered(tokens, count, size, filter_words, filter_start, filter_bits[which], near, near_firsts)
            filter_start += 1 << filter_bits[which]
            # Everything to look up is touched first, so that the processor waits for many loads at once.
            for place in range(passed):
                longs[place] = np.int64(directory[near[place] >> directory_shift])
            for place in range(passed):
                number = min(longs[place], len(grams) - 1)
                heads[place] = grams[number]
                longs[place] = gram_places[number]
            for place in range(passed):
                heads[place] = np.uint64(plain[longs[place]])
            # The previous n-gram: its first word in the text, its number of words, and in the index the position of
            # its second word and the position after its last.
            before, before_whole, second, after = np.int64(-2), np.int64(0), np.int64(-1), np.int64(-1)
            for place in range(passed):
                value, first = near[place], near_firsts[place]
                slot = value >> directory_shift
                for number in range(np.int64(directory[slot]), np.int64(directory[slot + np.uint64(1)])):
                    if grams[number] != value:
                        continue
                    whole = np.int64(gram_sizes[number])
                    if first + whole > count:
                        continue
                    begin = gram_places[number]
                    if first == before + 1 and begin == second and whole == before_whole:
                        # It continues the previous n-gram, whose comparison covered all its words but the last.
                        stop = _same(data, first + whole - 1, 1, starts, ends, pages, codes, plain, after)
                    else:
                        stop = _same(data, first, whole, starts, ends, pages, codes, plain, begin)
                    if stop < 0:
                        continue
                    before, before_whole, after, second = first, whole, stop, begin
                    while plain[second] != _BETWEEN:
                        second += 1
                    second += 1
                    if made == len(texts):
                        texts, numbers = _grown(texts, made), _grown(numbers, made)
                        firsts, lasts = _grown(firsts, made), _grown(lasts, made)
                    texts[made], numbers[made] = row, number
                    firsts[made], lasts[made] = starts[first] - offsets[row], ends[first + whole - 1] - offsets[row]
                    made += 1
    return texts[:made].copy(), numbers[:made].copy(), firsts[:made].copy(), lasts[:made].copy()


@routine
def _filtered(tokens, count, size, filter_words, filter_start, filter_bits, near, firsts):
    """Fill `near` and `firsts` with the hash and the first word of the n-grams that pass the filter; their number."""
    power, roll = _power(size), np.uint64(0)
    salt = np.uint64(size) * _SIZE
    shift = np.uint64(64 - filter_bits)
    passed = 0
    for word in range(min(size - 1, count)):
        roll = roll * _BASE + tokens[word]
    oldest = np.uint64(0)
    for word in range(size - 1, count):
        roll = roll * _BASE + tokens[word] - oldest
        value = mixed(roll + salt)
        near[passed], firsts[passed] = value, word - size + 1
        bits = filter_mask(value)
        passed += filter_words[filter_start + np.int64(value >> shift)] & bits == bits
        oldest = tokens[word - size + 1] * power
    return passed


@leaf
def filter_mask(value):
    """The bits of a hash within its word of the filter."""
    low, middle, high = value & _SIX, value >> np.uint64(6) & _SIX, value >> np.uint64(12) & _SIX
    return np.uint64(1) << low | np.uint64(1) << middle | np.uint64(1) << high


@kernel
def make_filter(grams: Hashes, bits: int) -> Hashes:
    """The filter of some hashes, of `1 << bits` words."""
    words = np.zeros(1 << bits, np.uint64)
    shift = np.uint64(64 - bits)
    for number in range(len(grams)):
        words[grams[number] >> shift] |= filter_mask(grams[number])
    return words


@routine
def _same(data, first, size, starts, ends, pages, codes, plain, place):
    """Compare the words from `first` on with those at `place` in the index: where these end, or -1."""
    for word in range(first, first + size):
        at = starts[word]
        while at < ends[word]:
            point, width = decode(data, at)
            code = flags_of(point, pages, codes)
            at += width
            if code == np.uint32(0) or code == _UNDERSCORE:
                continue
            point, width = decode(plain, place)
            if point != np.int64(code & np.uint32(0x3FFFFFFF)):
                return np.int64(-1)
            place += width
        if plain[place] != _BETWEEN:
            return np.int64(-1)
        place += 1
    return place


@routine
def _sort_words(words, groups, count, other_words, other_groups, ends):
    """Sort the first `count` of `words`, and `groups` with them; equal ones keep their order.

    Few are sorted by insertion, more by some bits at a time; the last three arrays are to work with.
    """
    if count <= _FEW:
        for place in range(1, count):
            word, group, at = words[place], groups[place], place
            while at > 0 and words[at - 1] > word:
                words[at], groups[at] = words[at - 1], groups[at - 1]
                at -= 1
            words[at], groups[at] = word, group
        return
    low, high = words[0], words[0]
    for place in range(count):
        low, high = min(low, words[place]), max(high, words[place])
    shift = 0
    while (high - low) >> shift > 0:
        for digit in range(_DIGITS + 1):
            ends[digit] = 0
        for place in range(count):
            ends[((words[place] - low) >> shift & (_DIGITS - 1)) + 1] += 1
        for digit in range(_DIGITS):
            ends[digit + 1] += ends[digit]
        for place in range(count):
            digit = (words[place] - low) >> shift & (_DIGITS - 1)
            other_words[ends[digit]], other_groups[ends[digit]] = words[place], groups[place]
            ends[digit] += 1
        copy_items(words, 0, other_words, count)
        copy_items(groups, 0, other_groups, count)
        shift += _DIGIT_BITS


@routine
def _fill_blocks(blocks, item_bounds):
    """Fill in, for every block of words and the one after the last, the last item that begins at its start or before.

    Two of them say between which items to look for that of a word.
    """
    last = len(item_bounds) - 1
    item = 0
    for block in range(len(blocks)):
        while item < last - 1 and item_bounds[item + 1] <= block << _BLOCK_BITS:
            item += 1
        blocks[block] = item


@leaf
def _item_of(word, item_bounds, blocks):
    """The last item that begins at the word or before."""
    block = word >> _BLOCK_BITS
    low, high = np.int64(blocks[block]), np.int64(blocks[block + 1]) + 1
    while high - low > 1:
        middle = (low + high) >> 1
        if item_bounds[middle] <= word:
            low = middle
        else:
            high = middle
    return low


@routine
def _drop_hopeless(words, groups, count, items, group_sizes, item_bounds, blocks, searched, min_share, sums):
    """Keep those of `count` places that are in items that may reach `min_share`; returns their number.

    `sums` has zeros and room for the words of all n-grams found in an item. Items may share a place there, which makes
    a sum too high and never too low. Most n-grams are short phrases, found alone in each of many items.
    """
    for place in range(count):
        item = _item_of(words[place], item_bounds, blocks)
        items[place] = item
        sums[item & _SUMS] += group_sizes[groups[place]]
    left = 0
    for place in range(count):
        item = items[place]
        words[left], groups[left] = words[place], groups[place]
        left += sums[item & _SUMS] + 1 > min_share * searched[item]  # one more, since products are rounded
    for place in range(count):
        sums[items[place] & _SUMS] = 0
    return left


@kernel
def score_items(
    hit_bounds: Integers,
    hits: Integers,
    hit_starts: Integers,
    hit_ends: Integers,
    gram_sizes: Sizes,
    posting_bounds: Integers,
    postings: Integers,
    item_bounds: Integers,
    searched: Integers,
    min_share: float,
) -> tuple[Integers, Integers, npt.NDArray[np.float64], Integers, Integers, Integers]:
    """The share of each item that each text contains, from the n-grams found in it.

    Hits of text `t` are `hit_bounds[t]` to `hit_bounds[t + 1]`: numbers of n-grams and the bytes from and to. The
    n-gram `g` begins at the words `postings[posting_bounds[g]:posting_bounds[g + 1]]`, and item `i` has the words
    `item_bounds[i]` to `item_bounds[i + 1]`, of which `searched[i]` are part of an n-gram.

    Returns, for each text and item of which it has at least `min_share`: text, item, the share of the item's searched
    words; and the passages of the text: where those of each such pair begin, from and to.
    """
    texts, items, shares = np.empty(64, np.int64), np.empty(64, np.int64), np.empty(64, np.float64)
    bounds = np.zeros(65, np.int64)
    firsts, lasts = np.empty(64, np.int64), np.empty(64, np.int64)
    words, groups = np.empty(0, np.int64), np.empty(0, np.int64)
    other_words, other_groups = np.empty(0, np.int64), np.empty(0, np.int64)
    ends = np.empty(_DIGITS + 1, np.int64)
    sums = np.zeros(_SUMS + 1, np.int64)
    blocks = np.empty((item_bounds[-1] >> _BLOCK_BITS) + 2, np.uint32)
    _fill_blocks(blocks, item_bounds)
    made = passages = 0
    for text in range(len(hit_bounds) - 1):
        # A group is the hits of one n-gram, so that a text full of one phrase lists each item that has it once.
        begin, found = hit_bounds[text], hit_bounds[text + 1] - hit_bounds[text]
        sources = np.argsort(hits[begin : begin + found], kind="mergesort") + begin
        group_bounds, group_sizes = np.zeros(found + 1, np.int64), np.empty(found, np.int64)
        heads, tails = np.empty(found, np.int64), np.empty(found, np.int64)
        taken = np.empty(found, np.int64)
        known = 0
        # Independent loads come first, so that the processor waits for many at once.
        for at in range(found):
            gram = hits[sources[at]]
            if at == 0 or gram != hits[sources[at - 1]]:
                heads[known], tails[known] = posting_bounds[gram], posting_bounds[gram + 1]
                group_sizes[known] = gram_sizes[gram]
                known += 1
            group_bounds[known] = at + 1
        count = 0
        for group in range(known):
            taken[group] = ~postings[heads[group]]
            count += tails[group] - heads[group]
        if count > len(words):
            words, groups = np.empty(2 * count, np.int64), np.empty(2 * count, np.int64)
            other_words, other_groups = np.empty(2 * count, np.int64), np.empty(2 * count, np.int64)
        count = 0
        for group in range(known):
            words[count], groups[count] = ~taken[group], group
            count += 1
            for place in range(heads[group] + 1, tails[group]):
                words[count], groups[count] = postings[place], group
                count += 1
            taken[group] = -1
        mine, starts = np.empty(found, np.int64), np.empty(found, np.int64)
        if min_share > 0:
            count = _drop_hopeless(
                words, groups, count, other_words, group_sizes, item_bounds, blocks, searched, min_share, sums
            )
        _sort_words(words, groups, count, other_words, other_groups, ends)
        at = 0
        while at < count:
            item = _item_of(words[at], item_bounds, blocks)
            covered, reach, end = 0, item_bounds[item], at
            while end < count and words[end] < item_bounds[item + 1]:
                begin = words[end]
                after = begin + group_sizes[groups[end]]
                covered += max(0, after - max(begin, reach))
                reach = max(reach, after)
                end += 1
            share = covered / searched[item] if searched[item] > 0 else 0.0
            if share >= min_share and share > 0:
                if made == len(texts):
                    texts, items, shares = _grown(texts, made), _grown(items, made), _grown(shares, made)
                    bounds = _grown(bounds, made + 1)
                texts[made], items[made], shares[made] = text, item, share
                filled, ascending = 0, True
                for number in range(at, end):
                    group = groups[number]
                    if taken[group] == item:
                        continue
                    taken[group] = item
                    for place in range(group_bounds[group], group_bounds[group + 1]):
                        mine[filled], starts[filled] = sources[place], hit_starts[sources[place]]
                        ascending &= filled == 0 or starts[filled - 1] <= starts[filled]
                        filled += 1
                if not ascending:
                    copy_items(mine, 0, mine[np.argsort(starts[:filled], kind="mergesort")], filled)
                begun = passages
                for number in range(filled):
                    start, stop = hit_starts[mine[number]], hit_ends[mine[number]]
                    if passages > begun and start <= lasts[passages - 1]:
                        lasts[passages - 1] = max(lasts[passages - 1], stop)
                        continue
                    if passages == len(firsts):
                        firsts, lasts = _grown(firsts, passages), _grown(lasts, passages)
                    firsts[passages], lasts[passages] = start, stop
                    passages += 1
                made += 1
                bounds[made] = passages
            at = end
    return (
        texts[:made].copy(),
        items[:made].copy(),
        shares[:made].copy(),
        bounds[: made + 1].copy(),
        firsts[:passages].copy(),
        lasts[:passages].copy(),
    )
