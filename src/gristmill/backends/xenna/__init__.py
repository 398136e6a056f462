"""Runs pipelines on Cosmos-Xenna, which balances the workers of all stages itself."""

from gristmill.errors import require_module

require_module("cosmos_xenna", "The executor 'xenna'")
from gristmill.backends.xenna.executor import XennaExecutor  # noqa: E402

__all__ = ["XennaExecutor"]
