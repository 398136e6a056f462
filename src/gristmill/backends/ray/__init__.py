"""What the executors on Ray share: the cluster, the coordinator, the worker around a segment, and its results."""

from gristmill.errors import require_module

require_module("ray", "An executor on Ray")
