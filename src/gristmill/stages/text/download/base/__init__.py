"""What a download is made of; subclass these for a source of your own."""
