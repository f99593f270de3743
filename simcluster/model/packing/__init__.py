"""Documents packed into sequences: laws of their lengths, rules, and what is left of tokens and attention.  Pure."""
