"""Test the fixtures, in tests of an example application."""

from __future__ import annotations

from tests.contract.pytest_plugin.conftest import Project


class TestHeldLock:
    def test_a_function_under_the_lock_of_its_caller(self, project: Project) -> None:
        project.tests(
            """
            def test_award(held_lock):
                Learner(id="ann").put()
                with held_lock("ann") as lock:
                    ann = learners.load("ann")
                    points.award(ann)
                    assert lock.held
                assert not lock.held
                assert Learner.get_by_id("ann", use_cache=False).points == 100

            def test_another_users_is_no_help(held_lock):
                Learner(id="ann").put()
                with held_lock("bob"), pytest.raises(userlock.PutWithoutLock):
                    points.award(learners.load("ann"))

            def test_it_is_entered_again(held_lock):
                Learner(id="ann").put()
                with held_lock("ann") as lock:
                    assert points.finish_locked("ann") is lock

            def test_in_a_scope_that_is_open(held_lock):
                with userlock.scope() as scope, held_lock(7) as lock:
                    assert lock._scope is scope

            def test_nothing_is_waited_for(held_lock, userlock_service):
                userlock_service.acquire("ann", request="POST /another")
                with pytest.raises(userlock.LockTimeout, match="POST /another"):
                    with held_lock("ann"):
                        pass
            """
        )
        project.run().assert_outcomes(passed=5)

    def test_by_import(self, project: Project) -> None:
        project.tests(
            """
            import unittest
            from userlock.testing import allow_unlocked, held_lock

            class Case(unittest.TestCase):
                def test_award(self):
                    Learner(id="ann").put()
                    with held_lock("ann"):
                        points.award(learners.load("ann"))

                @allow_unlocked("they only count here")
                def test_finish(self):
                    Learner(id="ann").put()
                    points.finish("ann")
            """
        )
        project.run().assert_outcomes(passed=2)


class TestAllowUnlocked:
    def test_the_application_arranges(self, project: Project) -> None:
        project.tests(
            """
            def test_create(allow_unlocked):
                with allow_unlocked():
                    learners.create("ann")
                with pytest.raises(userlock.CreatedWithoutLock):
                    learners.create("bob")

            def test_it_is_fenced_all_the_same(allow_unlocked):
                Learner(id="ann").put()
                with allow_unlocked("on purpose"), pytest.raises(userlock.EntityExistsError):
                    learners.create("ann")

            @pytest.mark.allow_unlocked("of the time before locks")
            def test_whole():
                learners.create("cem")

            @pytest.mark.allow_unlocked
            class TestClass:
                @pytest.fixture
                def dan(self, datastore):
                    learners.create("dan")

                def test_fixture(self, dan):
                    points.finish("dan")
            """
        )
        project.run("--strict-markers").assert_outcomes(passed=4)


class TestIsolation:
    def test_nothing_passes_from_one_test_to_the_next(self, project: Project) -> None:
        project.tests(
            """
            seen = []

            @pytest.mark.parametrize("time", [1, 2])
            def test_each_begins_afresh(userlock_service, time, caplog):
                from userlock.lock.configuration import defaults
                assert defaults.service is userlock_service
                assert defaults.settings == userlock.Settings()
                assert userlock.current_scope() is None
                assert userlock.violations() == []
                assert userlock_service not in seen
                seen.append(userlock_service)
                assert userlock_service.holder("ann") is None

                userlock.configure(enforcement="log", fencing=False)
                Learner(id="ann").put()
                points.finish("ann")
                assert "PutWithoutLock" in caplog.text    # logged once, in each test
                seen.append(userlock.scope())    # or it would be closed at once
                seen[-1].__enter__()
                userlock.acquire_lock("ann")
                other = userlock.LockService.from_url("memory://")
                userlock.configure(service=other)
            """
        )
        project.run().assert_outcomes(passed=2)

    def test_the_configuration_for_all_tests_is_kept(self, project: Project) -> None:
        project.file(
            "tests/conftest.py",
            "import pytest, userlock\n\n"
            "service = userlock.LockService.from_url('memory://')\n"
            "userlock.configure(service=service)\n\n\n"
            "@pytest.fixture(scope='session', autouse=True)\n"
            "def whole_session():\n"
            "    yield\n"
            "    userlock.LockService.closed = service\n",
        )
        project.tests(
            """
            from userlock.lock.configuration import default_service

            def test_one(userlock_service):
                assert default_service() is userlock_service

            def test_two():
                assert default_service().store is not None
                with userlock.global_lock("ann") as lock:
                    assert lock._scope.service is default_service()
            """
        )
        project.run("-p", "no:randomly").assert_outcomes(passed=2)


class TestFaults:
    def test_a_lease_that_is_lost_in_the_middle_of_a_request(self, project: Project) -> None:
        project.tests(
            """
            def test_lost(mocker, userlock_faults, userlock_service):
                Learner(id="ann").put()
                mocker.patch(
                    "app.mail.send", side_effect=lambda *_: userlock_faults.lose_lease()
                )
                with pytest.raises(userlock.LeaseWasLost, match="a test has taken it away"):
                    points.finish_locked("ann")
                assert Learner.get_by_id("ann", use_cache=False).points == 0
                assert userlock_service.holder("ann") is None

            def test_not_lost(mocker):
                Learner(id="ann").put()
                send = mocker.patch("app.mail.send")
                points.finish_locked("ann")
                send.assert_called_once()

            def test_only_one_of_two(userlock_faults, held_lock):
                with held_lock("ann") as ann, held_lock("bob") as bob:
                    userlock_faults.lose_lease("bob")
                    assert (bool(ann.lost), bool(bob.lost)) == (False, True)

            def test_none_is_held(userlock_faults, held_lock):
                with pytest.raises(userlock.LockNotHeld, match="no lock is held here"):
                    userlock_faults.lose_lease()
                with held_lock("ann"), pytest.raises(userlock.LockNotHeld, match="'bob' is not"):
                    userlock_faults.lose_lease("bob")
            """
        )
        project.run().assert_outcomes(passed=4)

    def test_a_lock_that_the_store_forgets(self, project: Project) -> None:
        """Another request comes in between. Its write is not overwritten."""
        project.tests(
            """
            def intrude(faults):
                def send(learner):
                    if faults is not None:
                        faults.evict("ann")
                    with userlock.scope():
                        with userlock.global_lock("ann", wait_timeout=0):
                            points.finish("ann")
                return send

            def test_evicted(mocker, userlock_faults):
                Learner(id="ann").put()
                mocker.patch("app.mail.send", side_effect=intrude(userlock_faults))
                with pytest.raises(userlock.StaleWriteError):
                    points.finish_locked("ann")
                assert Learner.get_by_id("ann", use_cache=False).points == 5

            def test_kept(mocker):
                Learner(id="ann").put()
                mocker.patch("app.mail.send", side_effect=intrude(None))
                with pytest.raises(userlock.LockTimeout):
                    points.finish_locked("ann")

            def test_nobody_has_it(userlock_faults, held_lock):
                with pytest.raises(userlock.LockNotHeld, match="nobody holds lock 'ann'"):
                    userlock_faults.evict("ann")
                with held_lock("ann"):
                    userlock_faults.evict("ann")
                    with pytest.raises(userlock.LockNotHeld):
                        userlock_faults.evict("ann")
            """
        )
        project.run().assert_outcomes(passed=3)

    def test_a_store_that_is_down(self, project: Project) -> None:
        project.tests(
            """
            def test_down(userlock_faults):
                Learner(id="ann").put()
                with userlock_faults.store_down():
                    assert points.finish_locked("ann").degraded
                assert not points.finish_locked("ann").degraded
                assert Learner.get_by_id("ann", use_cache=False).points == 10

            def test_down_where_that_is_an_error(userlock_faults, userlock_service):
                userlock_service.outage = userlock.OutagePolicy.FAIL
                with userlock_faults.store_down():
                    with pytest.raises(userlock.LockServiceUnavailable, match="a test has taken"):
                        points.finish_locked("ann")
            """
        )
        project.run().assert_outcomes(passed=2)

    def test_replies_that_are_lost(self, project: Project) -> None:
        project.tests(
            """
            @pytest.mark.parametrize("to", ["acquire", "release"])
            def test_lost(to, userlock_faults, userlock_service):
                Learner(id="ann").put()
                userlock_faults.drop_reply(to)
                assert not points.finish_locked("ann").degraded
                assert userlock_service.holder("ann") is None
                assert userlock_service.store.asked["read"] > 1    # it had to look

            def test_not_lost(userlock_service):
                Learner(id="ann").put()
                points.finish_locked("ann")
                assert userlock_service.store.asked["read"] == 0

            def test_of_an_extension(userlock_faults, held_lock):
                with held_lock("ann") as lock:
                    userlock_faults.drop_reply("extend")
                    with pytest.raises(userlock.LockServiceUnavailable):
                        lock.extend(30)
                    assert not lock.lost

            def test_a_reply_to_what(userlock_faults):
                with pytest.raises(ValueError, match="takes one of acquire, extend, release"):
                    userlock_faults.drop_reply("holder")
            """
        )
        project.run().assert_outcomes(passed=5)

    def test_a_reply_that_nobody_asks_for_fails_its_test(self, project: Project) -> None:
        project.tests(
            """
            @pytest.mark.parametrize("to", ["acquire", "extend", "release"])
            def test_it(to, userlock_faults):
                userlock_faults.drop_reply(to)

            def test_one_of_two(userlock_faults, held_lock):
                userlock_faults.drop_reply("acquire")
                userlock_faults.drop_reply("acquire")
                with held_lock("ann"):
                    pass
            """
        )
        result = project.run()
        result.assert_outcomes(passed=4, errors=4)
        result.stdout.fnmatch_lines(["*drop_reply('release') has dropped no reply*"])

    def test_another_store_has_no_accidents(self, project: Project) -> None:
        project.tests(
            """
            @pytest.fixture
            def userlock_service():
                service = userlock.LockService.from_url("memcache://127.0.0.1:1")
                userlock.configure(service=service)
                yield service

            def test_it(request):
                with pytest.raises(TypeError, match="over a MemoryStore, not MemcacheStore"):
                    request.getfixturevalue("userlock_faults")
            """
        )
        project.run().assert_outcomes(passed=1)


class TestClocks:
    def test_by_hand(self, project: Project) -> None:
        project.tests(
            """
            from userlock.testing import ManualClock

            @pytest.fixture
            def userlock_clock():
                return ManualClock()

            def test_a_wait_takes_no_time(userlock_service, userlock_clock):
                userlock_service.acquire("ann")
                before = userlock_clock.now()
                with pytest.raises(userlock.LockTimeout):
                    with userlock.global_lock("ann", wait_timeout=5):
                        pass
                assert userlock_clock.now() >= before + 5

            def test_a_lease_runs_out(held_lock, userlock_clock):
                Learner(id="ann").put()
                with held_lock("ann", lock_timeout=10):
                    ann = learners.load("ann")
                    userlock_clock.advance(11)
                    with pytest.raises(userlock.LeaseRanOut):
                        points.award(ann)

            def test_a_lease_that_has_run_out_is_not_evicted(
                userlock_service, userlock_clock, userlock_faults
            ):
                userlock_service.acquire("ann", lock_timeout=10)
                userlock_clock.advance(11)
                with pytest.raises(userlock.LockNotHeld):
                    userlock_faults.evict("ann")
            """
        )
        project.run().assert_outcomes(passed=3)


class TestMocks:
    def test_a_put_that_is_spied_on_has_the_place_of_its_caller(self, project: Project) -> None:
        project.tests(
            """
            @pytest.mark.parametrize("patch", ["spy", "wraps", "autospec"])
            def test_spy(mocker, patch):
                Learner(id="ann").put()
                put = Learner.put
                if patch == "spy":
                    mocker.spy(Learner, "put")
                elif patch == "autospec":
                    mocker.patch.object(Learner, "put", autospec=True, side_effect=put)
                else:
                    load = learners.load
                    mocker.patch("app.points.load", side_effect=load)
                with pytest.raises(userlock.PutWithoutLock) as caught:
                    points.finish("ann")
                assert "app/points.py" in caught.value.put_at.file
                assert caught.value.put_at.function == "finish"
                put(Learner(id="ann"))
                with pytest.raises(userlock.PutWithoutLock):
                    points.finish("ann")

            def test_the_lock_can_be_mocked(mocker, userlock_service):
                acquired = mocker.spy(userlock_service, "acquired")
                Learner(id="ann").put()
                points.finish_locked("ann")
                assert acquired.call_args.args[0].claim.lock_id == "ann"
                error = userlock.LockTimeout(lock_id="ann", waited_seconds=5, holder=None)
                mocker.patch.object(userlock_service, "acquired", side_effect=error)
                with pytest.raises(userlock.LockTimeout):
                    points.finish_locked("ann")
            """
        )
        project.run().assert_outcomes(passed=4)
