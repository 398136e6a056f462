"""What happened: counts, decisions, the manifest of committed partitions, and the questions one can ask of them."""
