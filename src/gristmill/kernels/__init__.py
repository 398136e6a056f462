"""Pure column kernels: compiled functions over bytes and offsets of Arrow columns; no files, no tasks, no stages."""
