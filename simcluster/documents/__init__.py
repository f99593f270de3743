"""What people write, read and talked about: YAML with its lines, overrides, complaints that help."""
