"""Shell scripts read as data: assignments, arrays, plain tests and the commands that come of them.  Nothing is run."""
