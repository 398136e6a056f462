"""Documents from the web: lists of URLs, downloads, and what reads and extracts what was downloaded."""
