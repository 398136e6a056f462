"""Questions to the ledger of a finished run."""
