"""Pure column kernels: compiled functions over the bytes and offsets of Arrow columns; no files, no tasks, no stages."""
