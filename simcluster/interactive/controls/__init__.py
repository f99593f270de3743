"""What of a scenario one changes by hand: each control, the values that it is offered with, and the nearest that go.

Pure; read by the studio's page and by the notebook's widget.  The rows are in ``controls.yaml``; ``settings`` says what
controls are set to and what that changes, ``offers`` to what they may be set, and what goes instead where the rules of
a scenario refuse it.
"""
