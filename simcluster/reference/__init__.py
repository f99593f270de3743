"""The reference interpreter: the plain meaning of a step, which everything faster is compared with."""
