"""Lists of everything built in (models, devices, topologies, schedules, ...), and the text of each entry."""
