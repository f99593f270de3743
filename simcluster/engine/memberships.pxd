from simcluster.base.pointers cimport Buffers


cdef class Memberships:
    cdef Buffers buffers
    cdef int* head
    cdef int* count
    cdef int* first
    cdef int* member
    cdef double* weight
    cdef int* following
    cdef int* _container
    cdef int* _previous
    cdef int* _sibling
    cdef int _free
    cdef int _room
    cdef void make_members(self, int members) noexcept
    cdef void add(self, int container, int member, double weight) noexcept
    cdef void remove_all(self, int member) noexcept
    cdef void _make_room(self, int room) noexcept
