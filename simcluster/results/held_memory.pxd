from simcluster.base.merge_sort cimport MergeSort
from simcluster.base.pointers cimport Buffers, doubles


cdef class HeldMemory:
    cdef Buffers buffers
    cdef MergeSort _sort
    cdef int _count
    cdef int _pools
    cdef int* _source
    cdef int* _pool
    cdef double* _delta
    cdef double* _held
    cpdef list peak(self, object times)
