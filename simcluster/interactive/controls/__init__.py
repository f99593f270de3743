"""The studio's controls of a scenario: offered values, and valid settings near invalid ones.

No side effects; used by the studio's page and the notebook widget. ``controls.yaml`` has the rows, ``settings`` turns
values of controls into changes of a scenario, ``offered_values`` lists possible values and valid ones.
"""
