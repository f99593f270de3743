cimport cython

from simcluster.base.pointers cimport Buffers
from simcluster.engine.links cimport LinkActivities


cdef struct Collective:
    int members
    int blocks
    int channels
    int hops
    int first_hop
    int first_port
    int free


cdef struct Hop:
    int block
    int repeats
    int source
    int target
    int source_port
    int target_port
    int traffic


@cython.final
cdef class RoundsUnderWay:
    cdef Buffers buffers
    cdef LinkActivities links
    cdef int* left_lane
    cdef int left
    cdef Collective* _collectives
    cdef Hop* _hops
    cdef int* _port_first
    cdef int* _port_hop
    cdef int* _state
    cdef int _used
    cdef int _room
    cdef int allocate(self, int collective) noexcept
    cdef void arrive(self, int state, int position, int lane) noexcept
    cdef void end_hop(self, int activity) noexcept
    cdef int _hop(self, int state, int hop) noexcept
    cdef void _continue(self, int state, int port) noexcept
    cdef void _leave(self, int state, int position, int block) noexcept
    cdef void _enter(self, int state, int position, int block) noexcept
    cdef void _try(self, int state, int hop) noexcept
