"""Lock ids of models, and models without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb
from google.cloud.ndb import polymodel
from google.cloud.ndb.exceptions import ContextError

import userlock
from tests.contract.ndb.models import Learner, Note, Plain, VideoLog
from userlock import root_id
from userlock.testing import ManualClock

IN_TRANSACTION = userlock.WritePolicy.IN_TRANSACTION
WRITE_ONCE = userlock.WritePolicy.WRITE_ONCE


class TestDefinition:
    @pytest.mark.parametrize(
        ("base", "body", "says"),
        [
            (userlock.UserModel, {}, "does not say which lock guards it"),
            (userlock.UserModel, {"_lock_id": "owner"}, "'owner' names no property"),
            (userlock.UserModel, {"_lock_id": 17}, "name of a property or a method"),
            (userlock.UserModel, {"_lock_id_from_key": "key_id"}, "must be a function of a key"),
            (userlock.Model, {}, "names no write policy.*UserModel.*IN_TRANSACTION.*unsafe"),
            (userlock.Model, {"_write_policy": "once"}, "must be exactly one policy"),
            (userlock.Model, {"_write_policy": userlock.WritePolicy.unsafe}, "exactly one policy"),
            (userlock.Model, {"_write_policy": userlock.WritePolicy("once")}, "exactly one policy"),
            (userlock.Model, {"_write_policy": userlock.WritePolicy("unsafe")}, "exactly one"),
            (userlock.Model, {"_write_policy": (IN_TRANSACTION, WRITE_ONCE)}, "exactly one policy"),
        ],
    )
    def test_a_wrong_definition_is_refused(self, base: Any, body: Any, says: str) -> None:
        with pytest.raises(userlock.ConfigurationError, match=f"(?s){says}"):
            type("Wrong", (base,), body)

    @pytest.mark.parametrize("rule", [{"_lock_id": "user_id"}, {"_lock_id_from_key": root_id}])
    @pytest.mark.parametrize("base", [userlock.Model, userlock.UserModel])
    def test_a_model_that_names_two_is_refused(self, base: Any, rule: dict[str, Any]) -> None:
        (attribute,) = rule
        body = {"user_id": ndb.StringProperty(), "_write_policy": WRITE_ONCE, **rule}
        with pytest.raises(
            userlock.ConfigurationError,
            match="two write policies: written once .by `_write_policy`. and "
            f"under the user's lock .by `{attribute}`",
        ):
            type("Two", (base,), body)

    def test_two_that_are_inherited_are_refused_unless_the_class_says_which(self) -> None:
        class Once(userlock.Model):
            _write_policy = WRITE_ONCE

        class Transacted(userlock.Model):
            _write_policy = IN_TRANSACTION

        with pytest.raises(
            userlock.ConfigurationError,
            match=r"inherits two .*: written once \(from Once\) and in a transaction \(from Tr",
        ):
            type("Both", (Once, Transacted), {})
        both: Any = type("Both", (Once, Transacted), {"_write_policy": WRITE_ONCE})
        assert both._write_policy == WRITE_ONCE

    def test_a_policy_is_inherited_and_can_be_changed(self) -> None:
        class Once(userlock.Model):
            _write_policy = WRITE_ONCE

        class OnceToo(Once):
            pass

        class Locked(OnceToo):
            _lock_id_from_key = userlock.key_id

        assert OnceToo._write_policy == WRITE_ONCE
        assert Locked._write_policy == userlock.WritePolicy.USER_LOCK

    def test_a_user_model_is_under_the_users_lock(self, context: Any) -> None:
        assert Learner._write_policy is userlock.WritePolicy.USER_LOCK

        class Named(userlock.Model):
            _write_policy = userlock.WritePolicy.USER_LOCK
            _lock_id_from_key = userlock.key_id

        assert userlock.lock_id_of(Named(id="ann")) == "ann"

    def test_expandos_and_polymodels_have_policies_as_well(self, context: Any) -> None:
        class Loose(userlock.UserModel, ndb.Expando):
            _lock_id_from_key = userlock.key_id

        class Animal(userlock.UserModel, polymodel.PolyModel):
            _lock_id = "owner"
            owner = ndb.StringProperty()

        class Cat(Animal):
            pass

        with userlock.global_lock("ann"):
            Loose(id="ann", colour="red").put()
            Cat(owner="ann").put()
        with pytest.raises(userlock.CreatedWithoutLock):
            Cat(owner="ann").put()
        with pytest.raises(userlock.ConfigurationError, match="does not say which lock"):
            type("NoRule", (userlock.UserModel, polymodel.PolyModel), {})

    @pytest.mark.parametrize(
        ("root", "policy", "refusal"),
        [
            (polymodel.PolyModel, WRITE_ONCE, "Root is the root .* and it has none"),
            ("ABSTRACT", WRITE_ONCE, "Root is the root .* and it has none"),
            ("IN_TRANSACTION", WRITE_ONCE, "'written once', and Root, .* 'in a transaction'"),
        ],
    )
    def test_a_polymodel_has_the_policy_of_its_root(
        self, root: Any, policy: userlock.WritePolicy, refusal: str
    ) -> None:
        """A key names the root alone, and a delete has only the key."""

        def define() -> None:
            if isinstance(root, str):
                body = {"_write_policy": getattr(userlock.WritePolicy, root)}
                bases: Any = (type("Root", (userlock.Model, polymodel.PolyModel), body),)
            else:
                bases = (userlock.Model, type("Root", (root,), {}))
            type("Below", bases, {"_write_policy": policy})

        with pytest.raises(userlock.ConfigurationError, match=refusal):
            define()

    def test_a_polymodel_has_the_lock_of_its_root(self, context: Any) -> None:
        class Root(userlock.UserModel, polymodel.PolyModel):
            @classmethod
            def _lock_id_from_key(cls, key: Any) -> str:
                return str(key.id())

        class Below(Root):
            """Has the rule of the root."""

        assert userlock.lock_id_of(Below(id="ann")) == "ann"
        with pytest.raises(userlock.ConfigurationError, match="is not that of Root, the root"):
            type("Other", (Root,), {"_lock_id_from_key": userlock.key_id})

    def test_an_abstract_base_class_needs_none(self, context: Any) -> None:
        class Base(userlock.UserModel):
            _write_policy = userlock.WritePolicy.ABSTRACT
            user_id = ndb.StringProperty()

        class Derived(Base):
            _lock_id = "user_id"

        with userlock.global_lock("ann"):
            Derived(user_id="ann").put()
        with pytest.raises(userlock.AbstractModelWritten):
            Base(user_id="ann").put()


def test_models_without_policy_are_found() -> None:
    class Unguarded(Plain):
        pass

    found = userlock.models_without_policy("tests.contract.ndb")
    assert {Plain, Unguarded} <= set(found)
    assert not any(issubclass(each, userlock.Model) for each in found)
    assert userlock.models_without_policy("tests.contract.ndb.models") == [Plain]
    assert userlock.models_without_policy("userlock") == []
    with pytest.raises(ValueError, match=r"'tests\.contract\.nd'.*To fix it: import it"):
        userlock.models_without_policy("tests.contract.nd")


@pytest.mark.usefixtures("context")
class TestLockIds:
    def test_each_rule(self) -> None:
        assert userlock.lock_id_of(Learner(id="ann")) == "ann"
        assert userlock.lock_id_of(Learner(id=17)) == "17"
        assert userlock.lock_id_of(VideoLog(learner_id="bob")) == "bob"
        assert userlock.lock_id_of(Note(parent=ndb.Key(Learner, "cid"))) == "cid"

    def test_an_entity_that_has_no_key_yet_has_none(self) -> None:
        with pytest.raises(userlock.LockIdError, match="has no id yet"):
            userlock.lock_id_of(Learner())


def test_a_put_outside_any_ndb_context_says_so() -> None:
    with pytest.raises(ContextError, match="context"):
        Learner(id="ann").put()


@pytest.mark.usefixtures("context")
class TestFetchUnderUserWriteLock:
    @pytest.fixture(autouse=True)
    def _ann(self, context: Any) -> None:
        with userlock.global_lock("ann"):
            Learner(id="ann").put()
        context.clear_cache()

    def test_an_entity_that_was_read_too_early_is_read_again(
        self, elsewhere: Callable[[Callable[[], None]], None]
    ) -> None:
        def add_five() -> None:
            with userlock.global_lock("ann"):
                other = Learner.get_by_id("ann")
                other.points += 5
                other.put()

        early = Learner.get_by_id("ann")
        assert early is not None
        elsewhere(add_five)
        with userlock.fetch_under_user_write_lock(early) as learner:
            assert learner is not early
            assert learner.points == 5
            learner.points += 1
            learner.put()
        assert Learner.get_by_id("ann", use_cache=False).points == 6

    def test_an_entity_that_was_read_under_the_lock_is_returned_itself(
        self, service: userlock.LockService
    ) -> None:
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            assert learner is not None
            for read in (learner, ndb.transaction(learner.key.get)):
                with userlock.fetch_under_user_write_lock(read) as same:
                    assert same is read
            newer = learner.key.get(use_cache=False)
            newer.points += 1
            newer.put()
            with userlock.fetch_under_user_write_lock(learner) as same:
                assert same is newer
            assert service.holder("ann") is not None
        assert service.holder("ann") is None

    def test_a_new_entity_is_returned_itself(self) -> None:
        with userlock.fetch_under_user_write_lock(Learner(id="bob")) as learner:
            learner.put()

    def test_a_deleted_entity_is_an_error(self, service: userlock.LockService) -> None:
        learner = Learner.get_by_id("ann")
        assert learner is not None
        with userlock.global_lock("ann"):
            learner.key.delete()
        with (
            pytest.raises(userlock.EntityNotFound) as caught,
            userlock.fetch_under_user_write_lock(learner),
        ):
            pass
        assert caught.value.key == ndb.Key(Learner, "ann")
        assert isinstance(caught.value, LookupError)
        assert service.holder("ann") is None

    def test_it_takes_the_same_arguments_as_the_lock(
        self, service: userlock.LockService, clock: ManualClock
    ) -> None:
        learner = Learner.get_by_id("ann")
        assert learner is not None
        lease = service.acquire("ann")
        with (
            pytest.raises(userlock.LockTimeout),
            userlock.fetch_under_user_write_lock(learner, wait_timeout=0.1),
        ):
            pass
        service.release(lease)

    def test_anything_else_is_refused(self) -> None:
        with (
            pytest.raises(TypeError, match="takes a UserModel"),
            userlock.fetch_under_user_write_lock("ann"),  # type: ignore[type-var]
        ):
            pass


class Profile(userlock.UserModel, ndb.Expando):
    _lock_id_from_key = userlock.key_id

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedProfile"


@pytest.mark.parametrize("second", ["Rome", 7, ["Rome", "Bonn"]])
def test_a_dynamic_property_may_be_assigned_again(context: Any, second: Any) -> None:
    with userlock.global_lock("ann"):
        profile = Profile(id="ann")
        profile.city = "Bonn"
        profile.put()
        profile.city = second
        profile.put()
        found = Profile.get_by_id("ann", use_cache=False)
        assert found.city == second
        found.city = "Bonn"
        found.put()
    assert Profile.get_by_id("ann", use_cache=False).city == "Bonn"
