from simcluster.base.pointers cimport address, doubles

cdef extern from *:  # several numbers per instruction: half the time of the other modules' -O1
    """
    #pragma GCC optimize ("O3")
    """
