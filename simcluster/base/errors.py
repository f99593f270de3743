"""What users can do wrong, said once and clearly."""

from __future__ import annotations


class InputError(ValueError):
    """A bad input: the message says what is wrong, where, the rule, and what would work.

    The command line prints it on stderr and exits with status 2; everything else that escapes is our bug.
    """


class DeadlockError(InputError):
    """Ops that wait for each other for ever; the message names the ranks and what each waits for."""
