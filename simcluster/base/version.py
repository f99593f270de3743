"""The version of simcluster, which the package's metadata take from here."""

VERSION = "0.1.0"
