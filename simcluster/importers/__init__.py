"""Readers of the files of other tools, each giving a document that simcluster validates like one of its own."""
