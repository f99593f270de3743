"""Lists of all built-in models, devices, topologies, schedules and the like, and the text of each entry."""
