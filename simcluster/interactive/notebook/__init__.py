"""Notebook cells of objects: HTML pages, drawings, timelines to zoom into."""
