"""The pictures of the readme show what was measured, and can be seen on any screen."""

import re
from xml.etree import ElementTree as ET

import pytest

from ws_responses.demo import TOOL_CALLS

from . import pictures
from .measured_loop import kept, measure


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_current(name: str) -> None:
    """Without this a chart could show numbers that nobody measured. Else: ``python -m tests.docs.pictures``."""
    assert (pictures.FOLDER / name).read_text(encoding="utf-8") == str(pictures.PICTURES[name]())


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_small_stands_alone_and_has_colours_for_dark_screens(name: str) -> None:
    """Without this a picture could vanish on a dark page, or fetch something from elsewhere."""
    text = (pictures.FOLDER / name).read_text(encoding="utf-8")
    root = ET.fromstring(text)
    background = root.find("{*}rect")

    assert len(text) < 12_000
    assert background is not None
    assert background.get("class") == "fill-paper"
    assert "prefers-color-scheme: dark" in text
    assert re.findall(r"(?:href|src|url\(|@import)", text) == []


def test_the_numbers_of_the_chart_are_those_of_whole_loops() -> None:
    """Without this the chart could show a loop that broke off, or one round."""
    measured = kept()

    assert measured.rounds >= 6
    for way in (measured.http, measured.socket):
        assert len(way.ms) == len(way.sent) == TOOL_CALLS + 1
    assert measured.http.sent == sorted(measured.http.sent)
    assert len(set(measured.socket.sent[1:])) == 1


@pytest.mark.servers
def test_the_numbers_can_be_measured_anew() -> None:
    """Without this the chart would be a picture of an older version for ever."""
    measured = measure(1)

    assert (measured.http.sent, measured.socket.sent) == (kept().http.sent, kept().socket.sent)
    assert min(measured.http.ms + measured.socket.ms) > 0
