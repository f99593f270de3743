from simcluster.schedules.actions import Action, Schedule, loop_route


def f(p, m, v=1):
    return Schedule.along(loop_route(p, v), "x", [[Action([1, "a", None], 0)]] * p, m)
