"""Questions that take more than one run: stragglers priced, mitigations, chance, what if this cost nothing."""
