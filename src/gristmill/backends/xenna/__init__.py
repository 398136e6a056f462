"""Runs pipelines on Cosmos-Xenna, which balances the workers of all stages by itself."""

from gristmill.backends.xenna.executor import XennaExecutor

__all__ = ["XennaExecutor"]
