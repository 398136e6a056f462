"""The events of a run, the state derived from them, and the progress display."""
