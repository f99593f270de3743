"""The ops of a job in columns, and the accelerator that makes one event of a chain of them (collapse, expand)."""
