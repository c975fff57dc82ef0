"""Which workers `serve --workers` keeps: what is decided, whatever happens to them and whenever."""

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ws_responses.serve.crew import FIRST_WAIT_S, LONGEST_WAIT_S, Crew, Kill, Orders, Over, Phase, Start, Stop, Wait


def up(size: int) -> Crew:
    """A crew of which all serve, by the numbers from 1 on."""
    crew = Crew(size)
    assert list(crew.begin()) == [Start(1)]
    assert list(crew.started(1)) == [Start(number) for number in range(2, size + 1)]
    for number in range(2, size + 1):
        assert list(crew.started(number)) == []
    return crew


def test_the_others_wait_for_the_first() -> None:
    """Without this a wrong option would be told once by each worker."""
    crew = Crew(3)

    assert list(crew.begin()) == [Start(1)]
    assert list(crew.ended(1, 2)) == [Over(2)]


def test_one_that_dies_is_replaced_at_once() -> None:
    """Without this each crash would cost a worker for good."""
    crew = up(2)

    assert list(crew.ended(1, -9)) == [Start(3)]
    assert list(crew.started(3)) == []
    assert crew.serving == 2


def test_one_that_does_not_come_up_is_tried_again_ever_more_seldom() -> None:
    """Without this a disk that is full would be met by a start after the other, with all the work of one."""
    crew = up(2)
    crew.ended(1, 1)
    waits: list[float] = []
    for number in range(3, 11):
        (wait,) = crew.ended(number, 1)
        assert isinstance(wait, Wait)
        waits.append(wait.seconds)
        assert list(crew.waited()) == [Start(number + 1)]
    assert waits[:3] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert waits[-1] == LONGEST_WAIT_S

    crew.started(11)
    crew.ended(11, 1)
    assert list(crew.ended(12, 1)) == [Wait(FIRST_WAIT_S)]


def test_with_nobody_left_who_serves_it_ends() -> None:
    """Without this a server that cannot serve would look alive to whoever could start it elsewhere."""
    crew = up(2)
    assert list(crew.ended(1, 1)) == [Start(3)]
    assert list(crew.ended(2, 1)) == [Start(4)]
    assert list(crew.ended(3, 3)) == [Wait(FIRST_WAIT_S)], "4 may come up yet"
    assert list(crew.ended(4, -11)) == [Over(1)], "a signal is no exit code"


def test_a_restart_brings_the_new_one_before_the_old_one_goes() -> None:
    """Without this a restart would be an outage, and of all at once."""
    crew = up(2)

    assert list(crew.restart()) == [Start(3)]
    assert list(crew.started(3)) == [Stop(1)]
    assert list(crew.ended(1, 0)) == [Start(4)]
    assert list(crew.started(4)) == [Stop(2)]
    assert list(crew.ended(2, 0)) == []
    assert crew.phases == {3: Phase.SERVING, 4: Phase.SERVING}


def test_a_restart_ends_when_the_new_one_does_not_come_up() -> None:
    """Without this a bad deployment would replace all that works."""
    crew = up(2)
    crew.restart()

    assert list(crew.ended(3, 1)) == []
    assert crew.serving == 2
    assert list(crew.restart()) == [Start(4)], "it may be asked for again"


def test_a_restart_during_a_restart_replaces_what_is_new_as_well() -> None:
    """Without this a second deployment would leave workers with the code of the first."""
    crew = up(2)
    crew.restart()

    assert list(crew.restart()) == []
    assert list(crew.started(3)) == [Stop(1)]
    old = crew.ended(1, 0)
    replaced = {1}
    number = 4
    while old:
        assert list(old) == [Start(number)]
        (stop,) = crew.started(number)
        assert isinstance(stop, Stop)
        replaced.add(stop.worker)
        old = crew.ended(stop.worker, 0)
        number += 1
    assert replaced == {1, 2, 3}


def test_one_that_dies_while_its_successor_starts_leaves_it_the_place() -> None:
    """Without this there would be one worker too many from then on, or too few."""
    crew = up(2)
    crew.restart()

    assert list(crew.ended(1, -9)) == [Start(4)], "the restart goes on"
    assert list(crew.started(3)) == []
    assert list(crew.started(4)) == [Stop(2)]
    assert crew.serving == 2


def test_whoever_starts_is_not_waited_for_at_the_end() -> None:
    """Without this SIGTERM in the middle of a start would wait for a model that is loaded for nobody."""
    crew = Crew(2)
    crew.begin()
    crew.started(1)

    assert list(crew.stop()) == [Stop(1), Kill(2)]
    assert list(crew.started(2)) == [], "too late"
    assert list(crew.ended(2, -9)) == []
    assert list(crew.stop()) == []
    assert list(crew.ended(1, 0)) == [Over(0)]


def test_force_waits_for_nobody() -> None:
    """Without this a person would have to look for the processes to kill them."""
    crew = up(2)
    crew.stop()

    assert list(crew.force()) == [Kill(1), Kill(2)]
    assert list(crew.ended(1, -9)) == []
    assert list(crew.ended(2, -9)) == [Over(1)]


class CrewMachine(RuleBasedStateMachine):
    """Workers come up, do not, and die; operators restart and stop: in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.crew = Crew(3)
        self.living: set[int] = set()
        self.told: set[int] = set()
        self.waiting = 0
        self.code: int | None = None
        self.stopped = False
        self.do(self.crew.begin())

    def do(self, orders: Orders) -> None:
        for order in orders:
            assert self.code is None, "nothing is ordered after the end"
            match order:
                case Start(worker):
                    assert not self.stopped
                    assert worker not in self.living
                    self.living.add(worker)
                case Stop(worker):
                    assert worker in self.living
                    assert worker not in self.told, "a second signal would end it at once"
                    self.told.add(worker)
                    if not self.stopped:
                        assert self.crew.serving >= 1, "a restart is no outage"
                case Kill(worker):
                    assert worker in self.living
                case Wait(seconds):
                    assert 0 < seconds <= LONGEST_WAIT_S
                    self.waiting += 1
                    assert self.waiting == 1, "one timer"
                case Over(code):
                    assert not self.living
                    self.code = code

    def some(self, *phases: Phase) -> list[int]:
        return [worker for worker, phase in self.crew.phases.items() if phase in phases]

    @precondition(lambda self: self.some(Phase.STARTING))
    @rule(pick=st.randoms())
    def comes_up(self, pick: object) -> None:
        before = self.crew.serving
        self.do(self.crew.started(self.choose(pick, self.some(Phase.STARTING))))
        assert self.crew.serving >= before

    @precondition(lambda self: self.living)
    @rule(pick=st.randoms(), code=st.sampled_from([0, 1, -9]))
    def dies(self, pick: object, code: int) -> None:
        worker = self.choose(pick, sorted(self.living))
        self.living.remove(worker)
        self.stopped = self.stopped or self.crew.stopping
        self.do_ended(worker, code)

    def do_ended(self, worker: int, code: int) -> None:
        orders = self.crew.ended(worker, code)
        self.stopped = self.stopped or self.crew.stopping
        self.do(orders)

    @precondition(lambda self: self.waiting)
    @rule()
    def time_passes(self) -> None:
        self.waiting -= 1
        self.do(self.crew.waited())

    @precondition(lambda self: not self.stopped)
    @rule()
    def is_restarted(self) -> None:
        self.do(self.crew.restart())

    @rule(sure=st.sampled_from([False] * 9 + [True]))
    def is_stopped(self, sure: bool) -> None:
        if sure:
            self.stopped = True
            self.do(self.crew.stop())

    def choose(self, pick: object, workers: Sequence[int]) -> int:
        number: int = pick.choice(workers)  # type: ignore[attr-defined] # what st.randoms gives has no type of its own
        return number

    @invariant()
    def each_is_known(self) -> None:
        assert set(self.crew.phases) == self.living
        assert self.stopped or len(self.some(Phase.STARTING, Phase.SERVING)) <= 3 + 1, "a successor beyond the size"

    def teardown(self) -> None:
        """Once everybody comes up, all serve, none too many; and nobody is left who was to be replaced."""
        old = set() if self.stopped else set(self.some(Phase.SERVING))
        if not self.stopped:
            self.do(self.crew.restart())
        for _ in range(100):
            if self.waiting:
                self.time_passes()
            for worker in self.some(Phase.STARTING):
                self.do(self.crew.started(worker))
            for worker in sorted(self.told & self.living):
                self.living.remove(worker)
                self.do_ended(worker, 0)
            if self.stopped:
                for worker in sorted(self.living):
                    self.living.remove(worker)
                    self.do_ended(worker, 0)
        if self.stopped:
            assert self.code is not None
            return
        assert self.crew.serving == len(self.living) == 3
        assert not old & self.living


TestCrew = CrewMachine.TestCase


@pytest.mark.parametrize("size", [1, 4])
def test_a_restart_replaces_all_of_any_size(size: int) -> None:
    """Without this the last or the only one would be forgotten."""
    crew = up(size)
    orders = crew.restart()
    for number in range(size + 1, 2 * size + 1):
        assert list(orders) == [Start(number)]
        (stop,) = crew.started(number)
        assert stop == Stop(number - size)
        orders = crew.ended(number - size, 0)
    assert list(orders) == []
    assert sorted(crew.phases) == list(range(size + 1, 2 * size + 1))
