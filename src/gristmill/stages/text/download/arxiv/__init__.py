"""arXiv: the sources of its papers."""
