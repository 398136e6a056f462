"""Files in and out: finding inputs, cutting them into partitions, reading blocks, writing parts atomically.

Knows nothing of tasks or stages. Import from the modules themselves; nothing heavy is loaded here.
"""
