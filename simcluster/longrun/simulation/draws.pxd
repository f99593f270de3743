from simcluster.base.pointers cimport doubles, ints

cdef class Draws:
    cdef public int seed, first, count
    cdef int place, depth, used
    cdef list sources, constants
    cdef object fixed_array, begin_array, number_array
    cdef double* fixed
    cdef int* begins
    cdef double* numbers

    cpdef double value(self, int number, int occurrence) except? -1.0
    cdef int draw_block(self, int number, int block) except -1
