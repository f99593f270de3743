from libc.math cimport rint

from simcluster.base.pointers cimport Buffers
from simcluster.base.event_queue cimport EventQueue
from simcluster.engine.max_min cimport MaxMin


cdef class LinkActivities:
    cdef Buffers buffers
    cdef EventQueue queue
    cdef readonly MaxMin shares
    cdef double ticks
    cdef double* due
    cdef int* kind
    cdef int* meeting
    cdef int* stage
    cdef int* hop
    cdef readonly int under_way
    cdef readonly long long skipped
    cdef double* _bytes
    cdef double* _rounds
    cdef double* _latency
    cdef double* _bound
    cdef double* _nominal
    cdef int* _traffic
    cdef double* _remaining
    cdef double* _round_seconds
    cdef double* _updated
    cdef double* _drag
    cdef unsigned char* _state
    cdef int* _next_free
    cdef int _free
    cdef readonly int room
    cdef bint changed(self) noexcept
    cdef int take(self) noexcept
    cdef void give_back(self, int activity) noexcept
    cdef void begin(self, int activity, int traffic, double drag, double now) noexcept
    cdef bint advance(self, int activity, double now) noexcept
    cdef void settle(self, double now) noexcept
    cdef void set_drag(self, int activity, double drag, double now) noexcept
    cdef void set_factor(self, int link, double factor, double now) noexcept
    cdef void _release(self, int activity, double now) noexcept
    cdef double _seconds_of_round(self, int activity, double rate) noexcept
    cdef void _reckon(self, int activity, double now) noexcept
    cdef void _make_room(self, int room) noexcept
