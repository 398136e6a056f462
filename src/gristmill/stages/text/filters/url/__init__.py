"""Filters documents by URL: lists of domains, adult terms, extensions, types of hosts."""
