"""How long a GPU and its host take: kernels on a roofline, compute beside communication, launches.  Pure."""
