"""What collectives and sends put on links, and the max-min fair rates that come of it.  Pure."""
