"""Lets `python -m gristmill` do what the `gristmill` command does."""

from __future__ import annotations

from gristmill.cli.entry import main

if __name__ == "__main__":
    main()
