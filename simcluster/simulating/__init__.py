"""Playing a program: with SimPy as events, or as one longest path where nothing competes."""
