cimport cython

from simcluster.base.pointers cimport Buffers
from simcluster.base.event_queue cimport EventQueue
from simcluster.engine.max_min cimport MaxMin


cdef struct Activity:
    double due
    double remaining
    double round_seconds
    double updated
    double drag
    int traffic
    int phase
    int kind
    int meeting
    int stage
    int hop


@cython.final
cdef class LinkActivities:
    cdef Buffers buffers
    cdef EventQueue queue
    cdef readonly MaxMin shares
    cdef Activity* state
    cdef readonly int under_way
    cdef readonly long long events
    cdef double* _bytes
    cdef double* _rounds
    cdef double* _latency
    cdef double* _bound
    cdef double* _nominal
    cdef int _free
    cdef readonly int room
    cdef bint changed(self) noexcept
    cdef int take(self) noexcept
    cdef void give_back(self, int activity) noexcept
    cdef void begin(self, int activity, int traffic, double drag) noexcept
    cdef bint advance(self, int activity) noexcept
    cdef void settle(self) noexcept
    cdef void set_drag(self, int activity, double drag) noexcept
    cdef void set_factor(self, int link, double factor) noexcept
    cdef void _release(self, int activity) noexcept
    cdef double _seconds_of_round(self, int activity, double rate) noexcept
    cdef void _reckon(self, int activity) noexcept
    cdef void _make_room(self, int room) noexcept
