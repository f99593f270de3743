from simcluster.base.merge_sort cimport MergeSort
from simcluster.base.pointers cimport Buffers, doubles


cdef class RankStates:
    cdef Buffers buffers
    cdef MergeSort _sort
    cdef int _count
    cdef int _events
    cdef int _edges
    cdef int _barrier_count
    cdef int* _source
    cdef int* _bits
    cdef int* _late
    cdef int* _checkpoint
    cdef int* _barriers
    cdef int* _change
    cdef double* _edge
    cdef int* _active
    cdef unsigned char* _host_ends
    cdef unsigned char* _held_up
    cdef int* _depth
    cdef double* _seconds
    cpdef tuple ends(self, object end)
    cpdef list measure(self, object ready, object start, object end, double total, double stage_done, double worked, bint alone)
    cdef void _add_change(self, double time, int change) noexcept
    cdef double _cut_time(self, double* ready, double* start, double* end) noexcept
    cdef void _find_active(self) noexcept
    cdef bint _is_idle(self, int edge, double worked) noexcept
    cdef void _find_held_up(self, double worked) noexcept
    cdef void _sum(self, double done, double stage_done, double worked, bint alone) noexcept


cdef int _lowest(int bits, int bit) noexcept
