"""A run of weeks: what fails, what that costs, and two players of it.  Pure: knows the seconds of a step, no scenario."""
