"""Verification of a finished run from its files alone."""
