"""Figures, text and the one-page report, made of numbers."""
