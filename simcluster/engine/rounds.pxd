from simcluster.base.pointers cimport Buffers
from simcluster.engine.links cimport LinkActivities


cdef class RoundsUnderWay:
    cdef Buffers buffers
    cdef LinkActivities links
    cdef int* left_lane
    cdef int left
    cdef int* _members
    cdef int* _hops
    cdef int* _blocks
    cdef int* _hop_first
    cdef int* _seat_first
    cdef int* _seat_hop_first
    cdef int* _seat_hop
    cdef int* _block
    cdef int* _repeats
    cdef int* _source
    cdef int* _target
    cdef int* _traffic
    cdef int* _before_first
    cdef int* _before
    cdef int* _after_first
    cdef int* _after
    cdef int* _state
    cdef int* _free
    cdef int _used
    cdef int _room
    cdef int allocate(self, int collective) noexcept
    cdef void arrive(self, int collective, int state, int meeting, int kind, int position, int lane, double now) noexcept
    cdef void end_hop(self, int collective, int state, int activity, double now) noexcept
    cdef int _member(self, int collective, int state, int position) noexcept
    cdef void _leave(self, int collective, int state, int meeting, int kind, int position, int block, double now) noexcept
    cdef void _enter(self, int collective, int state, int meeting, int kind, int position, int block, double now) noexcept
    cdef void _try(self, int collective, int state, int meeting, int kind, int hop, double now) noexcept
