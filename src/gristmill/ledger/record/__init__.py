"""What is recorded while a pipeline runs."""
