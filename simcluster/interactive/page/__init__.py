"""A page on this machine with controls over a scenario: change one thing, and see the step that is played then.

``states`` says what a state of the page is, ``answers`` what the page shows of it (by the code of ``show.report``),
``kept`` what is played once for all parts of that, ``pool`` who plays it, ``server`` who serves it.  What can be
changed are the ``controls``, a package of their own.
"""
