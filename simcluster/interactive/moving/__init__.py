"""HTML reports with controls that switch between simulated variants of a scenario."""
