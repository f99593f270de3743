from simcluster.schedules.actions import Action, Schedule, loop_route


def f(p, m, v=1):
    return Schedule.with_single_route(loop_route(p, v), "x", [[Action([1, "a", None], 0)]] * p, m)
