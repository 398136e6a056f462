"""Advice before and after a run: what is in the input, what a run will take, and what would make it faster."""
