"""Pure column kernels: compiled functions over bytes and offsets of Arrow columns; no files, no tasks, no stages."""

without_numba = False
"""Whether kernels are loaded from disk without numba; said by a process before it imports the first of them."""
in_use = False
"""Whether this process has imported any."""
