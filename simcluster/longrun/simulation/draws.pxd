from simcluster.base.pointers cimport Buffers

cdef class Draws:
    cdef public int seed, first, count, place
    cdef int depth, used
    cdef list sources, constants
    cdef Buffers buffers
    cdef double* fixed
    cdef int* begins
    cdef double* numbers

    cpdef double draw(self, int number, int occurrence) except? -1.0
    cdef int draw_block(self, int number, int block) except -1
