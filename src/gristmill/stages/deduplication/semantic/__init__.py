"""Semantic deduplication: documents whose embeddings point in nearly the same direction."""
