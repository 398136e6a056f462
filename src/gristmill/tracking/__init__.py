"""Tracks rows through stages: what goes in, what comes out, and what happened to the rest."""
