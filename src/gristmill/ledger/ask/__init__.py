"""Queries over the ledger of a finished run."""
