"""How long a GPU and its host take: kernels on a roofline, interference, launches.  Pure."""
