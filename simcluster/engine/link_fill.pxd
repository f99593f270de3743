cimport cython

from simcluster.base.pointers cimport Buffers


@cython.final
cdef class LinkFill:
    cdef Buffers buffers
    cdef double* want
    cdef double* flows
    cdef double* _partial
    cdef void make_room(self, int room) noexcept
    cdef double level(self, double capacity, int count) noexcept
    cdef double _sum(self, int count, double low, double high) noexcept
