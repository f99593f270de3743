"""What collectives and sends put on a cluster's links, and the fair rates that come of it.  Pure."""
