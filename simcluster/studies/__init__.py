"""Questions asked of many steps: what if, sweeps, search for layouts, jobs side by side."""
