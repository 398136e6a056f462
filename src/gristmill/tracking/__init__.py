"""Which row is which: what goes into a stage, what comes out, and what became of the rest."""
