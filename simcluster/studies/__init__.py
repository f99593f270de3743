"""Questions asked of many steps: what if, sweeps, search, jobs together."""
