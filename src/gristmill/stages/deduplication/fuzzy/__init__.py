"""Fuzzy deduplication: documents that share most of their word sequences."""
