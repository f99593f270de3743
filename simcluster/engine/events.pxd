cimport cython
from libc.math cimport rint

from simcluster.base.pointers cimport Buffers, prefetch


cdef double INFINITE


cdef struct Chain:
    double time
    int first


cdef struct Event:
    int key
    int following


@cython.final
cdef class EventQueue:
    cdef Buffers buffers
    cdef Chain* chains
    cdef Event* events
    cdef public double now
    cdef double ticks
    cdef readonly int count
    cdef int _room
    cdef int _events
    cdef int _free
    cdef int _latest
    cdef double _latest_time
    cdef void put(self, double time, int key) noexcept
    cdef double rounded(self, double seconds) noexcept
    cdef int key(self) noexcept
    cdef int pop(self) noexcept
    cdef void _put_chain(self, double time, int first) noexcept
    cdef void _remove_earliest_chain(self) noexcept
    cdef void _make_room(self, int room) noexcept
    cdef void _make_events(self, int room) noexcept


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


@cython.final
cdef class MaxMin:
    cdef Buffers buffers
    cdef Memberships users
    cdef EventQueue queue
    cdef double* _want
    cdef double* _flows
    cdef double* _partial
    cdef double* capacity
    cdef double* level
    cdef double* rate
    cdef double* _bound
    cdef double* before
    cdef int* usage
    cdef int* usage_first
    cdef int* usage_link
    cdef double* usage_flows
    cdef int* owner
    cdef unsigned char* is_waiting
    cdef unsigned char* is_touched
    cdef int* touched
    cdef int touched_count
    cdef void make_room(self, int room) noexcept
    cdef void join(self, int activity, int traffic) noexcept
    cdef double reserve(self, int activity, int traffic) noexcept
    cdef void cancel(self, int traffic) noexcept
    cdef void leave(self, int activity) noexcept
    cdef void solve(self) noexcept
    cdef void _touch(self, int activity) noexcept
    cdef void visit(self, int link) noexcept
    cdef void _update(self, int activity, int link) noexcept
    cdef double _level_of(self, int link) noexcept
    cdef double _share(self, double capacity, int count) noexcept
    cdef double _sum(self, int count, double low, double high) noexcept


cdef struct Activity:
    double due
    double remaining
    double round_seconds
    double updated
    double drag
    int traffic
    int phase
    int kind
    int meeting
    int stage
    int hop


@cython.final
cdef class LinkActivities:
    cdef Buffers buffers
    cdef EventQueue queue
    cdef readonly MaxMin shares
    cdef Activity* state
    cdef readonly int under_way
    cdef readonly long long events
    cdef double* _bytes
    cdef double* _rounds
    cdef double* _latency
    cdef double* _nominal
    cdef int _free
    cdef readonly int room
    cdef bint changed(self) noexcept
    cdef int take(self) noexcept
    cdef void give_back(self, int activity) noexcept
    cdef void begin(self, int activity, int traffic, double drag) noexcept
    cdef bint advance(self, int activity) noexcept
    cdef void settle(self) noexcept
    cdef void set_drag(self, int activity, double drag) noexcept
    cdef void set_factor(self, int link, double factor) noexcept
    cdef void _release(self, int activity) noexcept
    cdef double _round_seconds(self, int activity, double rate) noexcept
    cdef void _reckon(self, int activity) noexcept
    cdef void _make_room(self, int room) noexcept


cdef struct TemplateOp:
    double seconds
    double sensitivity
    int slot
    int work
    int place
    int wait_first
    int wait_end
    int lane
    int at
    int run
    int open
    int waiter


@cython.final
cdef class TemplateOps:
    cdef Buffers buffers
    cdef TemplateOp* ops
    cdef int* wait_op
    cdef int* wait_peer
    cdef int* _peer
    cdef int _peers
    cdef int whose(self, int instance, int wait) noexcept
    cdef object _close_awaited_ops(self, object templates, object instances)
    cdef object _find_runs(self, object templates)


cdef struct LaneState:
    double due
    double since
    double left
    double factor
    double changed
    double pressure
    double speed
    double slowness
    int last
    int stop
    int base
    int template
    int instance
    int own
    int rank
    int number
    int waits_from
    int awaited
    int waiters
    int meeting
    int joined
    int next
    int follower
    int followed


@cython.final
cdef class LaneStates:
    cdef readonly Buffers buffers
    cdef EventQueue queue
    cdef readonly int count
    cdef readonly int lanes_over
    cdef bint keeps_times
    cdef LaneState* state
    cdef TemplateOps _templates
    cdef TemplateOp* ops
    cdef int* at
    cdef int* following
    cdef readonly long long events
    cdef int* ready_lanes
    cdef int ready_count
    cdef void put(self, int lane) noexcept
    cdef double* end
    cdef int* _lane_op
    cdef double* _own
    cdef double* _lane_end
    cdef int* _lane_first
    cdef int* _template_first
    cdef object _put_at_first_ops(self, object tables)
    cdef int place(self, int lane, int at) noexcept
    cdef int op(self, int lane, int at) noexcept
    cdef void keep(self, int lane, int at, double end) noexcept
    cdef bint begins(self, int lane) noexcept
    cdef int run_ahead(self, int lane, bint joins) noexcept
    cdef int _follower(self, int lane, int place) noexcept
    cdef double seconds(self, int lane, int at) noexcept
    cdef bint end_run(self, int lane) noexcept
    cdef bint settle(self, int lane, double pressure, double speed) noexcept
    cdef void _come_to_now(self, int lane) noexcept
    cdef double _end_of_run(self, int lane) noexcept
    cdef double _factor(self, int lane, int at) noexcept
    cdef double _left(self, int lane, double time) noexcept
    cdef void end_op(self, int lane) noexcept
    cdef int _awaited_lane(self, int lane, int place) noexcept
    cdef void _join_waiters(self, int lane, int awaited_lane, int at) noexcept
    cdef void _wake_waiters(self, int ended) noexcept
    cpdef int op_at(self, int lane)
    cpdef bint is_over(self, int instance, int number)


cdef struct Meeting:
    double since
    int arrived
    int kind
    int head
    int latest
    int last
    int number


@cython.final
cdef class MeetingStates:
    cdef Buffers buffers
    cdef LaneStates lanes
    cdef Meeting* record
    cdef long long over
    cdef int* _slots
    cdef int _group_count
    cdef int* _kinds
    cdef int* _parties
    cdef object _in_rounds
    cdef void find(self, int lane, int place) noexcept
    cdef int count(self, int lane) noexcept
    cdef void join(self, int lane) noexcept
    cdef void expect(self, int lane) noexcept
    cdef bint is_full(self, int meeting) noexcept
    cdef bint is_due(self, int meeting) noexcept
    cdef bint are_there(self, int meeting) noexcept
    cdef bint note(self, int lane, bint first) noexcept
    cdef void leave(self, int lane) noexcept
    cpdef object kept_times(self)
    cpdef tuple arrived(self, int meeting)


cdef struct RankState:
    double speed
    int lane
    int is_changed


@cython.final
cdef class RankActivities:
    cdef Buffers buffers
    cdef LaneStates lanes
    cdef LinkActivities links
    cdef MeetingStates meetings
    cdef Memberships flights
    cdef readonly int computing_lanes
    cdef readonly int changed
    cdef readonly bint drags
    cdef int* _changed
    cdef RankState* _state
    cdef double* _pressure
    cdef double* _drag
    cdef int* _rank_first
    cdef int* _kind_rank
    cdef void begin(self, int lane, bint joins) noexcept
    cdef void end(self, int lane) noexcept
    cdef void take_off(self, int flight, int kind) noexcept
    cdef void land(self, int flight, int kind) noexcept
    cdef void set_speed(self, int rank, double factor) noexcept
    cdef void settle(self) noexcept
    cdef void _mark_changed(self, int rank) noexcept
    cdef void _settle_lanes(self, int rank) noexcept
    cdef void _settle_flights(self, int rank) noexcept


cdef struct Collective:
    int members
    int blocks
    int channels
    int hops
    int first_hop
    int first_port
    int free


cdef struct Hop:
    int block
    int repeats
    int source
    int target
    int source_port
    int target_port
    int traffic


@cython.final
cdef class RoundsUnderWay:
    cdef Buffers buffers
    cdef LinkActivities links
    cdef MeetingStates meetings
    cdef Collective* _collectives
    cdef Hop* _hops
    cdef int* _port_first
    cdef int* _port_hop
    cdef int* _state
    cdef int _used
    cdef int _room
    cdef int allocate(self, int collective) noexcept
    cdef void arrive(self, int state, int position, int lane) noexcept
    cdef void end_hop(self, int activity) noexcept
    cdef int _hop(self, int state, int hop) noexcept
    cdef void _continue(self, int state, int port) noexcept
    cdef void _leave(self, int state, int position, int block) noexcept
    cdef void _enter(self, int state, int position, int block) noexcept
    cdef void _try(self, int state, int hop) noexcept


@cython.final
cdef class Engine:
    cdef Buffers buffers
    cdef readonly EventQueue queue
    cdef readonly LaneStates lanes
    cdef readonly LinkActivities links
    cdef readonly MeetingStates meetings
    cdef readonly RankActivities ranks
    cdef RoundsUnderWay rounds
    cdef readonly int change
    cdef int _changes
    cdef bint _more_changes
    cdef double* _change_time
    cdef int* _change_of
    cdef double* _change_factor
    cdef double _until
    cdef int* _position
    cdef int _position_count
    cdef int* _traffic_first
    cdef int* _traffic
    cdef int* _in_rounds
    cdef bint _joins_ahead
    cpdef object load_changes(self, object times, object of, object factors, bint more)
    cpdef int run(self, long long events)
    cpdef long long events(self) noexcept
    cpdef long long ops_over(self) noexcept
    cpdef double next_event(self) noexcept
    cdef int _stop(self) noexcept
    cdef double _next_time(self) noexcept
    cdef void _apply_changes(self) noexcept
    cdef void _finish_instant(self) noexcept
    cdef void _take_event(self) noexcept
    cdef void _begin(self, int lane) noexcept
    cdef void _arrive_in_rounds(self, int lane, int place, int kind) noexcept
    cdef void _begin_if_all_arrived(self, int meeting) noexcept
    cdef void _advance_activity(self, int activity) noexcept
    cdef void _end_meeting(self, int meeting) noexcept
