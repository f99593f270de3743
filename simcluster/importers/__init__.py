"""Importers that convert topology files, model configurations and launch scripts of other tools to documents."""
