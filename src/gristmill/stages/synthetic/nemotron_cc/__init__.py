"""Rewriting documents with a language model, as in Nemotron-CC."""
