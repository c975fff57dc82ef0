"""The reader does what a page says, and notices what it says wrongly."""

from pathlib import Path

import pytest

from .reader import Reader, steps

PAGE = """# A page

Save this as `one.py`:

```python no-run
print(1)
```

Run it:

    {command}

It prints one line:

    {promised}

In a second terminal:

    {second}

## Later

    false
"""


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    folder = tmp_path / "empty"
    folder.mkdir()
    return Reader(folder, tmp_path / "ws_responses-0.1.0-py3-none-any.whl", {8000: 1234}, tmp_path / "home")


def page(tmp_path: Path, command: str = "python3 one.py", promised: str = "1", second: str = "true") -> Path:
    file = tmp_path / "page.md"
    file.write_text(PAGE.format(command=command, promised=promised, second=second), encoding="utf-8")
    return file


def test_files_are_saved_commands_run_and_their_words_compared(reader: Reader, tmp_path: Path) -> None:
    reader.follow(page(tmp_path), [""])

    assert (reader.folder / "one.py").read_text(encoding="utf-8") == "print(1)\n"
    assert reader.done == ["python3 one.py", "true"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"promised": "2"},
        {"command": "python3 two.py"},
        {"second": "false"},
    ],
    ids=str,
)
def test_a_page_that_is_wrong_is_noticed(wrong: dict[str, str], reader: Reader, tmp_path: Path) -> None:
    """Without this the tests of the paths could not fail."""
    with pytest.raises(AssertionError):
        reader.follow(page(tmp_path, **wrong), [""])


def test_a_second_terminal_knows_nothing_of_the_first(reader: Reader, tmp_path: Path) -> None:
    """Without this a page could forget that an environment is to be activated there, too."""
    with pytest.raises(AssertionError):
        reader.follow(
            page(tmp_path, command="export A=1\n    python3 one.py", second="test -n $A && test $A = 1"), [""]
        )


def test_ports_are_those_that_are_free(reader: Reader, tmp_path: Path) -> None:
    """Without this a test would meet whatever listens on port 8000 of the machine."""
    reader.follow(page(tmp_path, second="echo http://127.0.0.1:8000/v1 80001"), [""])

    assert reader.printed == "http://127.0.0.1:1234/v1 80001\n"


def test_blocks_have_the_paragraph_above_them(tmp_path: Path) -> None:
    found = [(step.above, step.language) for step in steps(page(tmp_path))]

    assert found == [
        ("Save this as `one.py`:", "python"),
        ("Run it:", None),
        ("It prints one line:", None),
        ("In a second terminal:", None),
        ("Later", None),
    ]
