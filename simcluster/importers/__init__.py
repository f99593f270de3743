"""Importers that turn other tools' topologies, model configurations and launch scripts into documents."""
