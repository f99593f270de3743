"""The scenario file as a frozen, checked document: its sections, the rules between them, what it asks of memory."""
