"""The cluster as an object, at the import path that scripts know."""
