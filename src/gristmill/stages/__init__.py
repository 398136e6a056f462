"""Stages: the contract (`base`, `resources`, `function_decorators`) and the work on documents (`text`)."""
