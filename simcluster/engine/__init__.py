"""Lowering: from stage programs to one program for the engine, with two accelerators: ranks that behave alike
folded, chains of ops as one event.  Pure.
"""
