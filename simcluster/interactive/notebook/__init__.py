"""Notebook display of objects: HTML, drawings, zoomable timelines, and the studio widget."""
