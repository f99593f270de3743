"""A page on this machine with controls over a scenario: change one thing, and see the step that is played then.

``states`` says what a state of the page is, ``controls`` what can be changed and to what, ``answers`` what the page shows
of a state (by the code of ``show.report``), ``pool`` who plays it, ``server`` who serves it.
"""
