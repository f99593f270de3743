from simcluster.base.pointers cimport Buffers

cdef double _SOON

cdef class RepairQueue:
    cdef int crews, begin, end, room
    cdef Buffers buffers
    cdef double* back

    cdef void clear(self) noexcept
    cdef int out(self, double now) noexcept
    cdef void send(self, double now, double seconds) except *
    cdef double ready_at(self, double now, int out) noexcept
    cdef void make_room(self, double now) except *
