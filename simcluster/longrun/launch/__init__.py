"""What to look at before a whole launch: the step's checklist, that of its run of weeks, and a small version to try."""
