"""Shared by all engines: running a segment, calling a stage, narrowing down failures, committing."""
