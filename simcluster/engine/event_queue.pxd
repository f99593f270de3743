from simcluster.base.pointers cimport Buffers


cdef class EventQueue:
    cdef Buffers buffers
    cdef double* times
    cdef int* keys
    cdef readonly int count
    cdef int room
    cdef void put(self, double time, int key) noexcept
    cdef int pop(self) noexcept
    cdef void _make_room(self) noexcept
