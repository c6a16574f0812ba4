"""Commands that are printed to be typed again."""

import os
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfacet.shell_words import typed

words = st.lists(st.binary(min_size=1).map(os.fsdecode) | st.text(st.characters(codec="utf-8"), min_size=1), min_size=1)


@pytest.mark.skipif(shutil.which("bash") is None, reason="what is printed is for bash and zsh")
@given(words.map(lambda drawn: [word.replace("\0", "'") for word in drawn]))
def test_a_shell_reads_what_was_given_and_a_terminal_obeys_nothing(given_words):
    line = typed(given_words)
    assert line.isprintable()
    environment = {"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]}
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True, env=environment)
    assert done.stdout.split(b"\0")[:-1] == [os.fsencode(word) for word in given_words]
