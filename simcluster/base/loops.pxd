from simcluster.base.pointers cimport address, doubles

cdef extern from *:  # vectorizes loops: half the time of -O1, which the other modules have
    """
    #pragma GCC optimize ("O3")
    """
