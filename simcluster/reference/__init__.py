"""Reference simulator of a step in plain SimPy; the fast engines must reproduce its times bit for bit."""
