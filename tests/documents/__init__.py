"""README, its pictures and the notebooks, kept at what the program says: ``python tests/documents --help``."""
