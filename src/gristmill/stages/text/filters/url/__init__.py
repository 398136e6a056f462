"""Filters of documents by their URLs: lists of domains, adult terms, extensions, kinds of hosts."""
