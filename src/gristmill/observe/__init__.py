"""What is happening: the events of a run, the state they add up to, and its display."""
