"""Registry of the optimizers that a scenario can name; each class is imported when first used.

To add one: write a subclass of ``optimizer.Optimizer`` in its own file, and a line in ``OPTIMIZERS``.
"""

OPTIMIZERS: dict[str, str] = {
    "adam": "simcluster.planning.optimizer:Adam",
    "muon": "simcluster.planning.muon:MuonOptimizer",
}
"""Every optimizer class by the value of ``training.optimizer``."""
