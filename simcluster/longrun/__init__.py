"""A run of weeks: what fails, what that costs, and two players of it; knows seconds of a step, no scenario."""
