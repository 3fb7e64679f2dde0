from geomx.sync.esync import ESync


def test_the_fastest_takes_a_hundred_steps_at_most_unless_told_otherwise():
    policy = ESync()
    policy.stepped("B/0", turn=0, steps=1, seconds=1000.0, now=1000.0)
    policy.closed(turn=0, now=1000.0)
    told = policy.stepped("A/0", turn=1, steps=1, seconds=0.5, now=1000.5)
    assert told["A/0"] == 100
