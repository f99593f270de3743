from simcluster.base.merge_sort cimport MergeSort
from simcluster.base.pointers cimport Buffers, doubles, ints


cdef class RankWaits:
    cdef Buffers buffers
    cdef MergeSort _sort
    cdef int _count
    cdef int _main_count
    cdef int _messages
    cdef int _found
    cdef int* _on_main
    cdef int* _pair
    cdef int* _main
    cdef int* _message
    cdef int* _receiver
    cdef int* _before
    cdef int* _pairs
    cdef int* _of
    cdef int* _in_pair
    cdef int* _last
    cdef double* _busy
    cdef double* _seconds
    cdef double* _until
    cdef double* _ready
    cdef double* _start
    cdef double* _end
    cpdef list measure(self, object ready, object start, object end, object last)
    cdef int _place_of(self, int rank, int in_pair) noexcept
    cdef void _sort_pairs(self, int many) noexcept
    cdef void _sum_main(self) noexcept
    cdef double _idle(self, int op, double begin) noexcept
    cdef double _busy_until(self, double time) noexcept
