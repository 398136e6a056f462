"""What the executors on Ray share: the cluster, the worker around a segment, the watch over workers, and delivery."""
