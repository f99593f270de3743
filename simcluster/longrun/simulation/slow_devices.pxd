from simcluster.base.pointers cimport Buffers

cdef double _INF

cdef class SlowDevices:
    cdef int count, room
    cdef Buffers buffers
    cdef double* end
    cdef double* noticed
    cdef double* pace
    cdef int* cause
    cdef double worst, next
    cdef int by

    cdef void clear(self) noexcept
    cdef void add(self, int cause, double pace, double end, double noticed) except *
    cdef void remove_ended(self, double now) noexcept
    cdef void remove_noticed(self, double now) noexcept
    cdef int notice(self, double now) noexcept
    cdef void empty(self, int slot) noexcept
    cdef void update(self, double short, int short_cause) noexcept
    cdef void make_room(self) except *
