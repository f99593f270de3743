"""Playing a program: with SimPy as events, or by an accelerator, as one longest path where nothing competes."""
