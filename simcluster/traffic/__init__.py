"""Traffic of collectives and sends on links, and the resulting max-min fair rates. No side effects."""
