"""Sent140 and Reddit in LEAF's layout, on made-up files."""

import json

import numpy as np
import pytest

from fedfacet.data.reddit import Reddit
from fedfacet.data.sent140 import Sent140
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError


def write(root, part, users):
    (root / "data" / part).mkdir(parents=True, exist_ok=True)
    content = {"users": list(users), "num_samples": [len(own["y"]) for own in users.values()], "user_data": users}
    (root / "data" / part / "all.json").write_text(json.dumps(content))


def tweet(text, user="ann"):
    return ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", user, text]


@pytest.fixture
def tweets(tmp_path):
    write(tmp_path, "train", {
        "bob": {"x": [tweet("so so GOOD", "bob")], "y": [1]},
        "ann": {"x": [tweet("so bad"), tweet("  ")], "y": [0, 0]},
    })  # fmt: skip
    write(tmp_path, "test", {"ann": {"x": [tweet("so new and long")], "y": [1]}})
    return tmp_path


def test_tweets_are_rows_of_words_by_user(tweets):
    dataset = Sent140(root=str(tweets), vocabulary=4, max_length=3).load()
    # Training words: so 3, "" 1, bad 1, good 1; four words leave the first three, and 0 for all others.
    assert dataset.inputs.fetch(np.arange(4)).tolist() == [[1, 3, -1], [2, -1, -1], [1, 1, 0], [1, 0, 0]]
    assert dataset.y.tolist() == [0, 0, 1, 1]
    assert dataset.columns["user"].tolist() == [0, 0, 1, 0]
    assert (dataset.train.tolist(), dataset.test.tolist()) == ([0, 1, 2], [3])


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"x": [tweet("a")], "y": [2]}, "labels: one is not 0 or 1"),
        ({"x": [["a"]], "y": [1]}, "tweets: one is not a list of"),
        ({"x": [], "y": []}, "tweets: not as many as labels"),
    ],
)
def test_faulty_tweets_are_said(tweets, own, said):
    write(tweets, "train", {"ann": own})
    with pytest.raises(DatasetCorruptError, match=f"{said}.*delete the folder and make it again"):
        Sent140(root=str(tweets)).load()


@pytest.mark.parametrize("source", [Sent140, Reddit])
def test_missing_files_are_said(source, tmp_path):
    with pytest.raises(DatasetNotFoundError, match=r"no json files of LEAF in .*dataset\.root=DIR"):
        source(root=str(tmp_path)).load()


def comment(*words):
    """What LEAF makes of a comment."""
    pad = lambda tokens: [*tokens, *["<PAD>"] * (-len(tokens) % 10)]  # noqa: E731
    rows = lambda tokens: [tokens[start : start + 10] for start in range(0, len(tokens), 10)]  # noqa: E731
    y = {"subreddit": "r", "target_tokens": rows(pad([*words, "<EOS>", "<PAD>"])), "count_tokens": []}
    return rows(pad(["<BOS>", *words, "<EOS>"])), y


def user(*comments):
    x, y = zip(*comments, strict=True)
    return {"x": list(x), "y": list(y)}


def test_comments_are_rows_of_ten_tokens_and_the_one_that_follows(tmp_path):
    long = comment(*"bbbbbbbbba")  # <BOS> and nine words, then a word and <EOS>
    write(tmp_path, "train", {"2": user(comment("a", "b"), long), "1": user(comment(*"bbbbbbbbb"))})
    write(tmp_path, "val", {"1": user(comment("c"))})
    write(tmp_path, "test", {"1": user(comment("b"))})
    dataset = Reddit(root=str(tmp_path)).load()
    number = {name: place for place, name in enumerate(dataset.class_names)}
    assert dataset.class_names == ("<UNK>", "b", "<BOS>", "<EOS>", "a")
    b, begin = number["b"], number["<BOS>"]
    rows = dataset.inputs.fetch(np.arange(len(dataset.y))).tolist()
    assert rows[0] == [begin, *[b] * 9]  # user 1; the row of <EOS> only is left out
    assert rows[1] == [begin, number["a"], b, *[-1] * 7]
    assert rows[2:4] == [[begin, *[b] * 9], [number["a"], *[-1] * 9]]
    assert dataset.y[:4].tolist() == [number[name] for name in ("<EOS>", "<EOS>", "a", "<EOS>")]
    assert rows[4] == [begin, 0, *[-1] * 8]
    assert [len(part) for part in (dataset.train, dataset.val, dataset.test)] == [4, 1, 1]
    assert dataset.columns["user"].tolist() == [0, 1, 1, 1, 0, 0]


def test_a_row_of_another_length_is_said(tmp_path):
    write(tmp_path, "train", {"1": {"x": [[["a"]]], "y": [{"target_tokens": [["b"]]}]}})
    with pytest.raises(DatasetCorruptError, match="rows: one is not 10 words and as many that follow"):
        Reddit(root=str(tmp_path)).load()
