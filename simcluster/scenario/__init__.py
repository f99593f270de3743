"""The scenario: a frozen, checked document, its rules, and the binder to planning."""
