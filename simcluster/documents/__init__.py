"""Documents that users write: YAML files with line numbers, overrides, formulas, and errors that suggest a fix."""
