"""HTML reports with controls that switch between variants of a scenario; all variants are simulated beforehand."""
