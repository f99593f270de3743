from simcluster.base.pointers cimport doubles, ints

cdef class Accounts:
    cdef int row, names, part_count
    cdef public object arrays
    cdef public list weeks
    cdef list week
    cdef double* wall
    cdef double* at
    cdef double* fates
    cdef double* parts
    cdef int* strikes
    cdef int* outages

    cdef void begin(self, int row) except *
    cdef void add(self, int fate, int cause, double seconds) noexcept
    cdef void add_part(self, int part, double seconds) noexcept
    cdef int strike(self, int cause) noexcept
    cdef int stop(self, int cause) noexcept
