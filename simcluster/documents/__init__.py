"""Documents that users write: YAML with line numbers, overrides, formulas, and helpful error messages."""
