"""What the executors on Ray share: the cluster, the coordinator, the worker around a segment, and its results."""
