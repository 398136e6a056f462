"""Common Crawl: its snapshots, files and pages."""
