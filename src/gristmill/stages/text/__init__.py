"""Stages that work on text documents."""
