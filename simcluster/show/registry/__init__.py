"""What ships, by name: every list of things that a scenario or a command can name, and each thing printed."""
