"""Text and facts from web pages."""
