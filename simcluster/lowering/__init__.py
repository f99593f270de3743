"""From stage programs to one program for the engine: ranks that behave alike folded, chains of ops as one.  Pure."""
