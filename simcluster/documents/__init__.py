"""What people write and read: YAML with its lines, overrides, expressions, complaints that help."""
