"""File access: finding inputs, splitting them into partitions, reading blocks, writing parts atomically.

Independent of tasks and stages. Import from the modules themselves; nothing heavy is loaded here.
"""
