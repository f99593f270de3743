cimport cython

from simcluster.base.event_queue cimport EventQueue
from simcluster.base.pointers cimport Buffers
from simcluster.engine.lanes cimport LaneStates


cdef struct Meeting:
    double since
    int arrived
    int kind
    int head
    int latest
    int last
    int number


@cython.final
cdef class MeetingStates:
    cdef Buffers buffers
    cdef EventQueue queue
    cdef LaneStates lanes
    cdef Meeting* record
    cdef long long over
    cdef int* _slots
    cdef int _group_count
    cdef int* _kinds
    cdef int* _parties
    cdef object _in_rounds
    cdef void find(self, int lane, int place) noexcept
    cdef int count(self, int lane) noexcept
    cdef void join(self, int lane) noexcept
    cdef void expect(self, int lane) noexcept
    cdef bint is_full(self, int meeting) noexcept
    cdef bint is_due(self, int meeting) noexcept
    cdef bint are_there(self, int meeting) noexcept
    cdef bint note(self, int lane, bint first) noexcept
    cpdef object kept_times(self)
    cpdef tuple arrived(self, int meeting)
