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
    cdef void add_event(self, double time, int key) noexcept
    cdef double round_to_grid(self, double seconds) noexcept
    cdef int peek_key(self) noexcept
    cdef int pop(self) noexcept
    cdef void _put_chain(self, double time, int first) noexcept
    cdef void _remove_earliest_chain(self) noexcept
    cdef void _grow_heap(self, int room) noexcept
    cdef void _grow_events(self, int room) noexcept


cdef struct Membership:
    double weight
    int member
    int following
    int container
    int previous
    int sibling
    int unused


@cython.final
cdef class MembershipLists:
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
    cdef void _grow_entries(self, int room) noexcept
    cdef void _allocate_members(self, int members) noexcept


@cython.final
cdef class MaxMinRates:
    cdef Buffers buffers
    cdef MembershipLists users
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
    cdef void allocate_transfers(self, int room) noexcept
    cdef void join_links(self, int activity, int traffic) noexcept
    cdef double reserve_links(self, int activity, int traffic) noexcept
    cdef void cancel_reservation(self, int traffic) noexcept
    cdef void leave_links(self, int activity) noexcept
    cdef void solve_rates(self) noexcept
    cdef void _mark_touched(self, int activity) noexcept
    cdef void schedule_link_update(self, int link) noexcept
    cdef void _update_rate(self, int activity, int link) noexcept
    cdef double _fair_level_of_link(self, int link) noexcept
    cdef double _fair_rate(self, double capacity, int count) noexcept
    cdef double _sum_flows(self, int count, double low, double high) noexcept


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
cdef class LinkTransfers:
    cdef Buffers buffers
    cdef EventQueue queue
    cdef readonly MaxMinRates shares
    cdef Activity* state
    cdef readonly int under_way
    cdef readonly long long events
    cdef double* _bytes
    cdef double* _rounds
    cdef double* _latency
    cdef double* _nominal
    cdef int _free
    cdef readonly int room
    cdef bint needs_update(self) noexcept
    cdef int allocate(self) noexcept
    cdef void free(self, int activity) noexcept
    cdef void begin_transfer(self, int activity, int traffic, double drag) noexcept
    cdef bint advance_transfer(self, int activity) noexcept
    cdef void update_rates(self) noexcept
    cdef void set_slowdown(self, int activity, double drag) noexcept
    cdef void set_capacity_factor(self, int link, double factor) noexcept
    cdef void _end_reservation(self, int activity) noexcept
    cdef double _round_seconds(self, int activity, double rate) noexcept
    cdef void _update_end_time(self, int activity) noexcept
    cdef void _grow(self, int room) noexcept


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
    cdef int awaited_instance(self, int instance, int wait) noexcept
    cdef object _mark_awaited_ops(self, object templates, object instances)
    cdef object _find_computation_runs(self, object templates)


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
    cdef void schedule_event(self, int lane) noexcept
    cdef double* end
    cdef int* _lane_op
    cdef double* _own
    cdef double* _lane_end
    cdef int* _lane_first
    cdef int* _template_first
    cdef object _init_lane_states(self, object tables)
    cdef int template_op_index(self, int lane, int at) noexcept
    cdef int global_op_number(self, int lane, int at) noexcept
    cdef void record_end(self, int lane, int at, double end) noexcept
    cdef bint try_begin_op(self, int lane) noexcept
    cdef int begin_run(self, int lane, bint joins) noexcept
    cdef int _find_follower(self, int lane, int place) noexcept
    cdef double op_seconds(self, int lane, int at) noexcept
    cdef bint end_run(self, int lane) noexcept
    cdef bint update_run(self, int lane, double pressure, double speed) noexcept
    cdef void _advance_run_to_now(self, int lane) noexcept
    cdef double _run_end_time(self, int lane) noexcept
    cdef double _slowdown_factor(self, int lane, int at) noexcept
    cdef double _remaining_seconds(self, int lane, double time) noexcept
    cdef void end_op(self, int lane) noexcept
    cdef int _find_awaited_lane(self, int lane, int place) noexcept
    cdef void _insert_waiter(self, int lane, int awaited_lane, int at) noexcept
    cdef void _resume_waiters(self, int ended) noexcept
    cpdef int current_op_number(self, int lane)
    cpdef bint is_op_finished(self, int instance, int number)


cdef struct Meeting:
    double since
    int arrived
    int kind
    int head
    int latest
    int last
    int number


@cython.final
cdef class RendezvousStates:
    cdef Buffers buffers
    cdef LaneStates lanes
    cdef Meeting* record
    cdef long long over
    cdef int* _slots
    cdef int _group_count
    cdef int* _kinds
    cdef int* _parties
    cdef object _in_rounds
    cdef void assign_rendezvous(self, int lane, int place) noexcept
    cdef int count_arrival(self, int lane) noexcept
    cdef void add_lane(self, int lane) noexcept
    cdef void expect_arrival(self, int lane) noexcept
    cdef bint have_all_joined(self, int meeting) noexcept
    cdef bint is_last_arrival_due(self, int meeting) noexcept
    cdef bint check_all_arrived(self, int meeting) noexcept
    cdef bint record_arrival(self, int lane, bint first) noexcept
    cdef void end_lane_communication(self, int lane) noexcept
    cpdef object recorded_times(self)
    cpdef tuple arrivals_and_kind(self, int meeting)


cdef struct RankState:
    double speed
    int lane
    int is_changed


@cython.final
cdef class RankComputations:
    cdef Buffers buffers
    cdef LaneStates lanes
    cdef LinkTransfers links
    cdef RendezvousStates meetings
    cdef MembershipLists flights
    cdef readonly int computing_lanes
    cdef readonly int changed
    cdef readonly bint drags
    cdef int* _changed
    cdef RankState* _state
    cdef double* _pressure
    cdef double* _drag
    cdef int* _rank_first
    cdef int* _kind_rank
    cdef void begin_computation(self, int lane, bint joins) noexcept
    cdef void end_computation(self, int lane) noexcept
    cdef void begin_communication(self, int flight, int kind) noexcept
    cdef void end_communication(self, int flight, int kind) noexcept
    cdef void set_speed(self, int rank, double factor) noexcept
    cdef void update_changed_ranks(self) noexcept
    cdef void _mark_changed(self, int rank) noexcept
    cdef void _update_computations(self, int rank) noexcept
    cdef void _update_communications(self, int rank) noexcept


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
cdef class HopByHopCollectives:
    cdef Buffers buffers
    cdef LinkTransfers links
    cdef RendezvousStates meetings
    cdef Collective* _collectives
    cdef Hop* _hops
    cdef int* _port_first
    cdef int* _port_hop
    cdef int* _state
    cdef int _used
    cdef int _room
    cdef int allocate_state(self, int collective) noexcept
    cdef void begin_member(self, int state, int position, int lane) noexcept
    cdef void end_hop_round(self, int activity) noexcept
    cdef int _hop_state_index(self, int state, int hop) noexcept
    cdef void _begin_next_rounds(self, int state, int port) noexcept
    cdef void _count_member_hop_done(self, int state, int position, int block) noexcept
    cdef void _move_member_to_block(self, int state, int position, int block) noexcept
    cdef void _try_begin_round(self, int state, int hop) noexcept


@cython.final
cdef class Engine:
    cdef Buffers buffers
    cdef readonly EventQueue queue
    cdef readonly LaneStates lanes
    cdef readonly LinkTransfers links
    cdef readonly RendezvousStates meetings
    cdef readonly RankComputations ranks
    cdef HopByHopCollectives rounds
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
    cpdef object load_link_and_speed_changes(self, object times, object of, object factors, bint more)
    cpdef int run(self, long long events)
    cpdef long long count_events(self) noexcept
    cpdef long long count_finished_ops(self) noexcept
    cpdef double next_event_time(self) noexcept
    cdef int _stop_in_deadlock(self) noexcept
    cdef double _next_instant(self) noexcept
    cdef void _apply_changes(self) noexcept
    cdef void _process_instant(self) noexcept
    cdef void _process_event(self) noexcept
    cdef void _begin_op(self, int lane) noexcept
    cdef void _join_hop_by_hop_collective(self, int lane, int place, int kind) noexcept
    cdef void _begin_transfer_if_all_arrived(self, int meeting) noexcept
    cdef void _advance_transfer(self, int activity) noexcept
    cdef void _end_rendezvous(self, int meeting) noexcept
