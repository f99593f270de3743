cdef double* doubles(object array)
cdef int* ints(object array)
