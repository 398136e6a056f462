"""Where plans run: the contract (`base`, `plan`, `registry`) and one folder per engine."""
