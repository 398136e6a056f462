"""Which row is which: what goes into a stage, what comes out, and what happened to the rest."""
