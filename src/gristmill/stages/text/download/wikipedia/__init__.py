"""Wikipedia: its dumps and their pages."""
