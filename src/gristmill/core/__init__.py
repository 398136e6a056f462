"""The Ray cluster client, at the import path that existing scripts use."""
