"""Test that puts of test code are unchecked, and puts of the application are checked."""

from __future__ import annotations

from tests.contract.pytest_plugin.conftest import Project


class TestArranging:
    def test_without_a_lock_over_existing_and_stale_entities(self, project: Project) -> None:
        project.tests(
            """
            def test_arranges():
                ann = Learner(id="ann", points=1)
                ann.put()
                Learner(id="ann", points=2).put()    # it exists
                ann.points = 3
                ann.put()                            # it is stale
                assert Learner.get_by_id("ann", use_cache=False).points == 3
                ann.key.delete()
                ndb.put_multi([ann, Learner(id="bob")])

            def test_in_a_transaction():
                ndb.transaction(lambda: Learner(id="ann").put())
                assert userlock.violations() == []
            """
        )
        project.run().assert_outcomes(passed=2)

    def test_the_applications_puts_are_checked_as_ever(self, project: Project) -> None:
        """The negative control, in the same tests on the same data."""
        project.tests(
            """
            def test_finish():
                Learner(id="ann").put()
                with pytest.raises(userlock.PutWithoutLock):
                    points.finish("ann")

            def test_create():
                with pytest.raises(userlock.CreatedWithoutLock):
                    learners.create("ann")

            def test_it_is_fenced():
                Learner(id="ann").put()
                with userlock.global_lock("ann"):
                    ann = learners.load("ann")
                    Learner(id="ann", points=9).put()    # somebody else
                    with pytest.raises(userlock.StaleObjectPut):
                        points.award(ann)

            def test_an_entity_that_a_test_has_read():
                Learner(id="ann").put()
                with pytest.raises(userlock.PutWithoutLock):
                    points.award(Learner.get_by_id("ann"))
            """
        )
        project.run().assert_outcomes(passed=4)

    def test_fixtures_and_helpers_are_test_code(self, project: Project) -> None:
        project.file(
            "tests/factories.py",
            "from app.learners import Learner\n\n\ndef make():\n    Learner(id='ann').put()\n",
        )
        project.tests(
            """
            from factories import make

            @pytest.fixture
            def ann(datastore):
                Learner(id="ann").put()

            def test_one(ann):
                make()

            class TestClass:
                def setup_method(self):
                    self.made = None

                def test_two(self):
                    [Learner(id=name).put() for name in "ab"]
            """
        )
        project.run().assert_outcomes(passed=2)

    def test_a_hook_of_the_application_is_not(self, project: Project) -> None:
        """A hook runs within a test's put, and puts another entity."""
        project.file(
            "app/logs.py",
            "from app.learners import Learner\n\n\n"
            "class Logged(Learner):\n"
            "    def _pre_put_hook(self):\n"
            "        Learner(id='log').put()\n",
        )
        project.tests(
            """
            def test_hook():
                from app.logs import Logged
                with pytest.raises(userlock.CreatedWithoutLock) as caught:
                    Logged(id="ann").put()
                assert "_pre_put_hook" in str(caught.value.put_at)
            """
        )
        project.run().assert_outcomes(passed=1)

    def test_doctests_do_not_make_test_code_of_the_application(self, project: Project) -> None:
        project.file(
            "app/points.py",
            (project.path / "app/points.py").read_text() + '\n"""\n>>> 1 + 1\n2\n"""\n',
        )
        project.file("app/doc.py", '"""\n>>> 1 + 1\n2\n"""\n')
        project.tests(
            """
            def test_finish():
                Learner(id="ann").put()
                with pytest.raises(userlock.PutWithoutLock):
                    points.finish("ann")
            """
        )
        project.run("--doctest-modules", "app", "tests").assert_outcomes(passed=2)


ARRANGES = """
    def test_arranges():
        Learner(id="ann").put()
"""


class TestSettings:
    def test_checked_if_the_configuration_says_so(self, project: Project) -> None:
        project.tests(ARRANGES)
        ini = project.path / "tox.ini"
        ini.write_text(ini.read_text() + "\nuserlock_test_code =\n")
        result = project.run()
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*CreatedWithoutLock*"])

    def test_other_folders_and_patterns(self, project: Project) -> None:
        make = "from app.learners import Learner\n\n\ndef make(name):\n    Learner(id=name).put()\n"
        project.file("fakes/makers.py", make)
        project.file("app/fixture_makers.py", make)
        project.tests(
            """
            from fakes import makers
            from app import fixture_makers

            def test_makers():
                makers.make("ann")
                fixture_makers.make("bob")
            """
        )
        project.run().assert_outcomes(failed=1)
        ini = project.path / "tox.ini"
        ini.write_text(ini.read_text() + "\nuserlock_test_code =\n  fakes\n  app/fixture_*.py\n")
        project.run().assert_outcomes(passed=1)

    def test_checked_in_a_strict_test(self, project: Project) -> None:
        project.tests(
            """
            @pytest.mark.userlock_strict
            def test_strict():
                with pytest.raises(userlock.CreatedWithoutLock):
                    Learner(id="ann").put()
                with userlock.global_lock("ann"):
                    Learner(id="ann").put()
                with userlock.global_lock("ann"), pytest.raises(userlock.EntityExistsError):
                    Learner(id="ann").put()

            def test_not_strict():
                Learner(id="ann").put()
            """
        )
        project.run("--strict-markers").assert_outcomes(passed=2)
