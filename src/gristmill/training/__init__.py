"""Classifiers that users train on their own labels: reading labelled texts, fitting, testing and saving."""
