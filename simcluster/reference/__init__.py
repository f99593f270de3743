"""Reference simulator of a step in plain SimPy, with which the fast engines are compared to the bit."""
