"""The default executor: all cores of this machine, streaming, within a memory budget."""
