"""Test settings from a mapping, the environment, or defaults."""

from __future__ import annotations

import pytest

from sample_app.config import ConfigError, Protection, Settings


def test_the_mapping_goes_before_the_environment() -> None:
    environ = {"PROTECTION": "none", "THINK_MS": "5", "MEMCACHED": "cache:1"}
    settings = Settings.load({"PROTECTION": "fencing", "THINK_MS": 7}, environ=environ)
    assert settings.protection is Protection.FENCING
    assert settings.think_ms == 7
    assert settings.memcached == "cache:1"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"PROTECTION": "hope"}, "'hope'; it is one of: lock, lock-only, fencing, none"),
        ({"THINK_MS": "soon"}, "THINK_MS is 'soon'"),
        ({"THINK_MS": -1}, "between 0 and 10000"),
    ],
)
def test_a_bad_setting_is_named(config: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings.load(config, environ={})
