"""arXiv: archives of the sources of papers."""
