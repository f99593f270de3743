cimport cython

from simcluster.base.pointers cimport Buffers


cdef struct Membership:
    double weight
    int member
    int following
    int container
    int previous
    int sibling
    int unused


@cython.final
cdef class Memberships:
    cdef Buffers buffers
    cdef int* head
    cdef int* count
    cdef int* first
    cdef Membership* entry
    cdef int _free
    cdef int _room
    cdef int _members
    cdef void add(self, int container, int member, double weight) noexcept
    cdef void remove_all(self, int member) noexcept
    cdef void _make_room(self, int room) noexcept
    cdef void _make_members(self, int members) noexcept
