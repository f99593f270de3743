from simcluster.base.pointers cimport doubles, ints

cdef class Accounts:
    cdef int row, names, parts_of_restart
    cdef object run
    cdef dict columns, counts
    cdef list weeks
    cdef double* wall
    cdef double* at
    cdef double* fates
    cdef double* parts
    cdef int* strikes
    cdef int* outages

    cdef void add_seconds(self, int fate, int cause, double seconds) noexcept
    cdef int count_event(self, int* counts, int cause) noexcept
