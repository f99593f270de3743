"""All built-in things by name: the list of each kind, and each thing printed."""
