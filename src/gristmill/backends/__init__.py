"""Where plans run: the contract (`base`, `plan`, `runner`) and one folder per engine."""
