"""Accelerator: ranks, groups and links that are equal, as an equitable partition; one plays for its class."""
