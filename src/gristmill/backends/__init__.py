"""Where plans run: the contract (`base`, `plan`, `registry`, `config`) and one folder per engine."""
