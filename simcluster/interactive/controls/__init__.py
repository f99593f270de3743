"""Controls of a scenario: the values that each offers, and valid values near an invalid one.

No side effects; used by the studio's page and the notebook widget. ``controls.yaml`` has the rows, ``settings`` turns
values of controls into changes of a scenario, ``offers`` lists possible values and valid alternatives.
"""
