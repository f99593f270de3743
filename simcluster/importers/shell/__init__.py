"""Reader of shell scripts as data: assignments, arrays, plain tests and commands; nothing is run."""
