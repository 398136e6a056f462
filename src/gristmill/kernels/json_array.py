"""JSON arrays as lines: one pass over the bytes of an array that puts each element on its own line.

The output has the length of the input, and every element keeps its position: line breaks and indentation inside an
element are removed, and the same number of newlines follow it. Values are not checked; that is left to the reader of
the lines.
"""

from __future__ import annotations

from gristmill.kernels.compiler import kernel
from gristmill.kernels.json_values import Integers, is_space
from gristmill.kernels.machine import WIDTH, copy_special, load_byte, store_byte, trailing_zeros

# Entries of the state: where the array is (below), brackets open, 1 in a string, 1 after its backslash, 1 in the white
# space at the start of a line, bytes taken out of the element, newlines still to be written, bytes of input used.
PHASE, _DEPTH, _IN_STRING, _ESCAPED, _INDENTED, _TAKEN_OUT, _OWED, USED = range(8)
STATE_SIZE = 8
BEFORE, INSIDE, AFTER = range(3)


@kernel
def cut_elements(source: int, count: int, target: int, room: int, state: Integers) -> int:
    """Turn the next `count` bytes of an array into lines, as far as there is room.

    Anything after the array is copied unchanged. A newline inside a string, which JSON forbids, becomes a carriage
    return, which JSON forbids as well, so that the element stays one record.

    Args:
        source: Address of the bytes.
        count: Their number.
        target: Address of where to write.
        room: Maximum number of bytes to write there; more than `WIDTH`.
        state: `STATE_SIZE` numbers, zero at the start of a file; `USED` says how much of the source was used.

    Returns:
        The number of bytes written.
    """
    phase, depth, in_string, escaped = state[PHASE], state[_DEPTH], state[_IN_STRING], state[_ESCAPED]
    indented, taken_out, owed = state[_INDENTED], state[_TAKEN_OUT], state[_OWED]
    i = 0
    out = 0
    last = room - WIDTH
    while out < last and (i < count or owed > 0):
        if owed > 0:
            store_byte(target + out, 10)
            out += 1
            owed -= 1
            continue
        if in_string != 0 and escaped == 0 and i + WIDTH <= count:
            mask = copy_special(target + out, source + i)
            step = trailing_zeros(mask) if mask != 0 else WIDTH
            i += step
            out += step
            if mask == 0 or out >= last:
                continue
        byte = load_byte(source + i)
        i += 1
        if phase == AFTER:
            store_byte(target + out, byte)
            out += 1
        elif in_string != 0:
            store_byte(target + out, 13 if byte == 10 else byte)
            out += 1
            if escaped != 0:
                escaped = 0
            elif byte == 92:
                escaped = 1
            elif byte == 34:
                in_string = 0
        elif phase == BEFORE:
            if byte == 91:
                phase = INSIDE
            store_byte(target + out, 10)
            out += 1
        elif depth == 0 and (byte == 44 or byte == 93 or is_space(byte)):
            if byte == 93:
                phase = AFTER
            store_byte(target + out, 10)
            out += 1
        elif byte == 10 or byte == 13 or (indented != 0 and is_space(byte)):
            indented = 1
            taken_out += 1
        else:
            indented = 0
            store_byte(target + out, byte)
            out += 1
            if byte == 34:
                in_string = 1
            elif byte == 123 or byte == 91:
                depth += 1
            elif (byte == 125 or byte == 93) and depth > 0:
                depth -= 1
                if depth == 0:
                    owed = taken_out
                    taken_out = 0
    state[PHASE], state[_DEPTH], state[_IN_STRING], state[_ESCAPED] = phase, depth, in_string, escaped
    state[_INDENTED], state[_TAKEN_OUT], state[_OWED] = indented, taken_out, owed
    state[USED] = i
    return out
