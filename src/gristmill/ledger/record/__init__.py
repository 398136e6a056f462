"""What is written down while a pipeline runs."""
