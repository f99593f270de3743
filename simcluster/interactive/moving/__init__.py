"""Reports whose page switches between variants of a scenario."""
