"""The viewer: a local page to browse, search and label the kept and dropped documents of a run."""
