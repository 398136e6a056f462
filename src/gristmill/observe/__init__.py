"""What is happening: the runner's stream of typed events, and those who listen to it."""
