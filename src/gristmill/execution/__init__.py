"""What every engine shares: running a segment, calling a stage, narrowing failures down, committing."""
