"""Figures and reports made from a timeline: the spine of the package never imports from here."""
