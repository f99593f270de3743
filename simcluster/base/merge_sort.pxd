from simcluster.base.pointers cimport Buffers


cdef class MergeSort:
    cdef Buffers buffers
    cdef double* keys
    cdef int* order
    cdef double* _keys
    cdef int* _order
    cdef int* _run
    cdef int _room
    cdef void make_room(self, int room) noexcept
    cdef void sort(self, int count) noexcept
    cdef void _merge(self, int left, int right, int end) noexcept
