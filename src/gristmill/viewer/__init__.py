"""The viewer: a local page to browse, search and label the documents of a run, kept and dropped, each with its why."""
