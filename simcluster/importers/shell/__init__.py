"""Reader of shell scripts that follows assignments, arrays, simple tests and commands without running them."""
