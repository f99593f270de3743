"""A page on this machine with controls over a scenario: change one thing, and see the step that is played then.

``states`` says what a state of the page is, ``controls`` what can be changed, ``offers`` to what, ``nearest`` what goes
instead where the rules refuse it, ``answers`` what the page shows of a state (by the code of ``show.report``), ``pool``
who plays it, ``server`` who serves it.
"""
