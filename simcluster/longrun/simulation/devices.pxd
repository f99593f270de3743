from simcluster.base.pointers cimport Buffers

cdef double _INF, _SOON

cdef class SlowPeriod:
    cdef public int cause
    cdef public double pace, end, noticed

cdef class SlowDevices:
    cdef list devices
    cdef double worst, next
    cdef int by

    cdef void remove_ended(self, double now) except *
    cdef void remove_noticed(self, double now) except *
    cdef int notice(self, double now) except -2
    cdef void update(self, double short, int short_cause) except *

cdef class RepairQueue:
    cdef int crews, count, room
    cdef Buffers buffers
    cdef double* back

    cdef int out(self, double now) noexcept
    cdef void send(self, double now, double seconds) except *
    cdef double ready_at(self, double now, int out) noexcept
