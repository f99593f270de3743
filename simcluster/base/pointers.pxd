cdef extern from *:
    """
    #ifdef __GNUC__
    #define simcluster_prefetch(address) __builtin_prefetch(address)
    #else
    #define simcluster_prefetch(address) ((void) (address))
    #endif
    """
    void prefetch "simcluster_prefetch"(void* address) noexcept


cdef void* address(object array)
cdef double* doubles(object array)
cdef int* ints(object array)


cdef class Buffers:
    cdef public dict arrays
    cdef double* doubles(self, str name, int room)
    cdef int* ints(self, str name, int room)
    cdef unsigned char* flags(self, str name, int room)
    cdef double* view_doubles(self, str name, object values)
    cdef int* view_ints(self, str name, object values)
    cdef void* records(self, str name, object dtype, int room)
    cdef void* make_records(self, str name, object columns, object dtype=*)
    cdef object fill(self, str name, str number, object values)
    cpdef object column(self, str name, str number)
    cpdef object contents(self, str name)
    cdef object _grow_array(self, str name, object array)
