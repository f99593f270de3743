from simcluster.base.pointers cimport Buffers


cdef struct Event:
    double time
    int key


cdef class EventQueue:
    cdef Buffers buffers
    cdef Event* events
    cdef readonly int count
    cdef int _room
    cdef void put(self, double time, int key) noexcept
    cdef int pop(self) noexcept
    cdef void _make_room(self, int room) noexcept
