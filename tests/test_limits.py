"""Every number has a sensible default and a reason, and a wrong one is refused where it is written."""

import ast
import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import pytest

import ws_responses.limits
from ws_responses.errors import ConfigurationError
from ws_responses.limits import MIB, Limits

FIELDS = dataclasses.fields(Limits)
NAMES = [field.name for field in FIELDS]
MAY_BE_NONE = [
    "max_connections",
    "max_tenant_connections",
    "max_tenant_turns",
    "max_connection_age_s",
    "idle_timeout_s",
    "body_timeout_s",
    "first_event_timeout_s",
    "blocked_timeout_s",
    "event_timeout_s",
    "send_timeout_s",
]
MAY_BE_ZERO = [
    "max_queued_creates",
    "max_queued_bytes",
    "max_warmup_bytes",
    "age_grace_s",
    "disconnect_grace_s",
    "max_lanes",
]


def limits(**values: Any) -> Limits:
    return Limits(**values)


@pytest.mark.parametrize("name", NAMES)
def test_each_default_is_positive(name: str) -> None:
    """Rule 10: nothing is without bound unless the user says so."""
    assert getattr(Limits(), name) > 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_frame_bytes", 16 * MIB),
        ("max_lanes", 32),
        ("max_running_turns", 16),
        ("max_connection_age_s", 3600.0),
        ("age_grace_s", 60.0),
        ("probe_timeout_s", 2.0),
    ],
)
def test_documented_defaults(name: str, value: float) -> None:
    """The protocol's own numbers: clients are built around them."""
    assert getattr(Limits(), name) == value


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-1, True, "5", math.nan, b"1", (), -math.inf])
def test_nonsense_is_refused_by_name(name: str, value: Any) -> None:
    """A limit that compares false with everything is no limit."""
    with pytest.raises(ConfigurationError, match=name):
        limits(**{name: value})


@pytest.mark.parametrize("name", NAMES)
def test_zero_is_refused_where_it_would_serve_nobody(name: str) -> None:
    """No running turns, or no time at all, is a mistake; an empty queue or no lanes is a choice."""
    if name in MAY_BE_ZERO:
        assert getattr(limits(**{name: 0}), name) == 0
    else:
        with pytest.raises(ConfigurationError, match=name):
            limits(**{name: 0})


@pytest.mark.parametrize("name", NAMES)
def test_only_some_can_be_switched_off(name: str) -> None:
    """What bounds memory cannot."""
    if name in MAY_BE_NONE:
        assert getattr(limits(**{name: None}), name) is None
    else:
        with pytest.raises(ConfigurationError, match=name):
            limits(**{name: None})


@pytest.mark.parametrize("name", NAMES)
def test_seconds_may_be_fractions_and_counts_may_not(name: str) -> None:
    """Half a lane is a typo."""
    if name.endswith("_s"):
        assert getattr(limits(**{name: 0.5}), name) == 0.5
        assert getattr(limits(**{name: 5}), name) == 5
    else:
        assert getattr(limits(**{name: 1}), name) == 1
        with pytest.raises(ConfigurationError, match=name):
            limits(**{name: 1.5})


def test_limits_cannot_change_under_a_connection() -> None:
    """They are shared by all."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Limits().max_lanes = 1  # type: ignore[misc] # that is the point
    with pytest.raises(TypeError):
        Limits(1)  # type: ignore[call-arg] # by name only


def test_each_limit_states_its_reason() -> None:
    """A number without one cannot be judged by who must change it."""
    module = ast.parse(Path(ws_responses.limits.__file__).read_text())
    (definition,) = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Limits"]
    body = definition.body
    reasons = {
        node.target.id: after.value.value
        for node, after in itertools.pairwise(body)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    }
    assert list(reasons) == NAMES
    assert all(isinstance(reason, str) and len(reason) > 20 for reason in reasons.values())
