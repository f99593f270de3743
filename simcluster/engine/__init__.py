"""The fast player: lowers stage programs by both accelerators; plays events, or one longest path."""
