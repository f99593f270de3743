cimport cython
from libc.math cimport rint

from simcluster.base.pointers cimport Buffers


cdef struct Chain:
    double time
    int first


cdef struct Event:
    int key
    int following


@cython.final
cdef class EventQueue:
    cdef Buffers buffers
    cdef Chain* chains
    cdef Event* events
    cdef public double now
    cdef double ticks
    cdef readonly int count
    cdef int _room
    cdef int _events
    cdef int _free
    cdef int _latest
    cdef double _latest_time
    cdef void put(self, double time, int key) noexcept
    cdef double rounded(self, double seconds) noexcept
    cdef int key(self) noexcept
    cdef int pop(self) noexcept
    cdef void _put_chain(self, double time, int first) noexcept
    cdef void _remove_chain(self) noexcept
    cdef void _make_room(self, int room) noexcept
    cdef void _make_events(self, int room) noexcept
