"""Rewriting documents with a language model in the ways of Nemotron-CC."""
