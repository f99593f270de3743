from simcluster.base.pointers cimport Buffers

cdef class Snapshots:
    cdef int cycles
    cdef bint in_memory
    cdef double period, last, rest
    cdef Buffers buffers
    cdef double* ends
    cdef double* safe_within
    cdef double* stalls
    cdef double at, in_memory_at, stored_at

    cdef long long split(self, double at) noexcept
    cdef double end(self, long long snapshot) noexcept
    cdef long long taken(self, double at) noexcept
    cdef double next_end(self) noexcept
    cdef double next_verified(self) noexcept
    cdef double target(self, bint stored) noexcept
