"""Exact deduplication: documents whose texts are equal byte for byte."""
