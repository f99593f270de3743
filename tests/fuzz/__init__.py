"""A seeded fuzzer of everything that simcluster reads: ``python tests/fuzz --inputs 2000 --seed 1``."""
