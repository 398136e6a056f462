"""Classifiers that users train on their own labels."""
