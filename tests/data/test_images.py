import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image
from torchvision.transforms import CenterCrop

from fedfacet.data.images import ImageFiles, LazyImages
from fedfacet.errors import DatasetCorruptError

REMEDY = "fetch it again"


class Counting(LazyImages):
    """Image i is filled with i; counts how often each was made."""

    def __init__(self, count, size=4, **options):
        super().__init__(count, size, **options)
        self.times = np.zeros(count, dtype=int)

    def make(self, index):
        self.times[index] += 1
        return np.full((self.image_size, self.image_size, 3), index, dtype=np.uint8)


def picture(size=(12, 8), mode="RGB", seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def files(folder, count=6, suffix="png", size=(8, 8)):
    paths = [folder / f"{index}.{suffix}" for index in range(count)]
    for index, path in enumerate(paths):
        picture(size, seed=index).save(path)
    return paths


@pytest.mark.parametrize("max_memory_gb", [8.0, 0.0])
def test_fetch_follows_the_order_and_repetitions_asked_for(max_memory_gb):
    images = Counting(20, max_memory_gb=max_memory_gb)
    for indices in ([7, 3, 3, 19, 0], [3], [], [19, 18, 7]):
        batch = images.fetch(np.array(indices, dtype=np.int64))
        assert batch.dtype == torch.uint8
        assert batch.shape == (len(indices), 3, 4, 4)
        assert batch[:, 0, 0, 0].tolist() == indices
        assert (batch == batch[:, :1, :1, :1]).all()


def test_each_image_is_made_once():
    images = Counting(10)
    for indices in ([1, 1, 2], [2, 3], [0, 1, 2, 3]):
        images.fetch(np.array(indices))
    assert images.times.tolist() == [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]


def test_kept_only_where_all_fit():
    images = Counting(10, size=100, max_memory_gb=10 * 3 * 100**2 / 1e9)
    smaller = Counting(10, size=100, max_memory_gb=(10 * 3 * 100**2 - 1) / 1e9)
    for _ in range(3):
        images.fetch(np.array([4]))
        smaller.fetch(np.array([4]))
    assert images.times[4] == 1
    assert smaller.times[4] == 3


def test_what_is_returned_is_a_copy():
    images = Counting(3)
    images.fetch(np.array([1])).fill_(9)
    assert images.fetch(np.array([1])).unique().tolist() == [1]


def test_failed_fetch_is_not_taken_for_made():
    class Failing(Counting):
        broken = True

        def make(self, index):
            if index == 2 and self.broken:
                raise DatasetCorruptError("broken")
            return super().make(index)

    images = Failing(4)
    with pytest.raises(DatasetCorruptError):
        images.fetch(np.arange(4))
    images.broken = False
    assert images.fetch(np.arange(4))[:, 0, 0, 0].tolist() == [0, 1, 2, 3]


def test_bad_arguments():
    with pytest.raises(ValueError, match="image_size"):
        Counting(3, size=0)
    with pytest.raises(ValueError, match="max_memory_gb"):
        Counting(3, max_memory_gb=-1.0)


def test_pixels_are_those_of_the_file(tmp_path):
    images = ImageFiles(files(tmp_path), 8, remedy=REMEDY)
    assert len(images) == 6
    for index, image in zip((5, 2), images.fetch(np.array([5, 2])), strict=True):
        assert np.array_equal(image.permute(1, 2, 0).numpy(), np.asarray(picture((8, 8), seed=index)))


def test_other_sizes_are_resized(tmp_path):
    paths = files(tmp_path, size=(12, 8))
    expected = np.asarray(picture((12, 8), seed=3).resize((5, 5), Image.Resampling.BILINEAR))
    image = ImageFiles(paths, 5, remedy=REMEDY).fetch(np.array([3]))[0]
    assert np.array_equal(image.permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize(("resized", "size"), [(7, 4), (8, 4), (9, 4), (10, 4), (4, 4), (37, 32)])
def test_the_centre_is_cut_out_of_what_was_resized(tmp_path, resized, size):
    paths = files(tmp_path, size=(12, 8))
    whole = picture((12, 8), seed=3).resize((resized, resized), Image.Resampling.BILINEAR)
    expected = np.asarray(CenterCrop(size)(whole))
    image = ImageFiles(paths, size, resized=resized, remedy=REMEDY).fetch(np.array([3]))[0]
    assert np.array_equal(image.permute(1, 2, 0).numpy(), expected)


def test_nothing_can_be_cut_out_of_something_smaller(tmp_path):
    with pytest.raises(ValueError, match=r"`resized` to be 8 .* or larger, but got 7"):
        ImageFiles(files(tmp_path), 8, resized=7, remedy=REMEDY)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1"])
def test_other_modes_become_rgb(tmp_path, mode):
    picture(mode=mode).save(tmp_path / "x.png")
    images = ImageFiles([tmp_path / "x.png"], 8, remedy=REMEDY)
    images.check()
    assert images.fetch(np.array([0])).shape == (1, 3, 8, 8)


@pytest.mark.parametrize(
    ("pixels", "name", "told"),
    [
        (np.full((8, 8), 30_000, np.uint16), "x.png", r"has more \(Pillow's mode I"),
        (np.full((8, 8), 30_000, np.int32), "x.tiff", r"has more \(Pillow's mode I\)"),
        (np.full((8, 8), 0.5, np.float32), "x.tiff", r"has floats \(Pillow's mode F\)"),
    ],
)
def test_more_than_8_bits_are_refused(pixels, name, told, tmp_path):
    """An X-ray of 16 bits became all white, floats in [0, 1] all black."""
    Image.fromarray(pixels).save(tmp_path / name)
    with pytest.raises(DatasetCorruptError, match=f"Expected images of 8 bits a channel, but .*{name} {told}"):
        ImageFiles([tmp_path / name], 8, remedy=REMEDY).fetch(np.array([0]))


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_truncated_file_is_found_unless_every_pixel_is_there(tmp_path, suffix):
    paths = files(tmp_path, 3, suffix, size=(20, 20))
    images = ImageFiles(paths, 20, remedy=REMEDY, max_memory_gb=0.0)
    images.check()
    whole = images.fetch(np.array([1]))
    content = paths[1].read_bytes()
    for length in (*range(0, 40), *range(40, len(content) - 30, 17)):
        paths[1].write_bytes(content[:length])
        with pytest.raises(DatasetCorruptError, match=rf"{paths[1]} .*: {REMEDY}\.$"):
            images.check()
    for length in range(len(content) - 30, len(content)):
        paths[1].write_bytes(content[:length])
        try:
            images.check()
        except DatasetCorruptError:
            continue
        assert torch.equal(images.fetch(np.array([1])), whole)


def test_unreadable_file_is_named(tmp_path):
    paths = files(tmp_path, 3)
    paths[1].write_bytes(b"<!doctype html>")
    paths[2].unlink()
    images = ImageFiles(paths, 8, remedy=REMEDY)
    for index, path in ((1, paths[1]), (2, paths[2])):
        with pytest.raises(DatasetCorruptError, match=str(path)):
            images.fetch(np.array([0, index]))
    with pytest.raises(DatasetCorruptError, match=str(paths[1])):
        images.check()


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_damage_inside_never_escapes_as_another_error(tmp_path, suffix):
    draw = np.random.default_rng(0)
    paths = files(tmp_path, 1, suffix, size=(24, 24))
    content = paths[0].read_bytes()
    refused = 0
    for _ in range(300):
        damaged = np.frombuffer(content, dtype=np.uint8).copy()
        damaged[draw.integers(len(damaged), size=3)] = draw.integers(256, size=3)
        paths[0].write_bytes(damaged.tobytes())
        try:
            ImageFiles(paths, 24, remedy=REMEDY).fetch(np.array([0]))
        except DatasetCorruptError:
            refused += 1
    assert refused > 0


def test_files_with_bytes_behind_their_end_are_not_refused(tmp_path):
    for suffix in ("png", "jpg"):
        paths = files(tmp_path, 1, suffix)
        paths[0].write_bytes(paths[0].read_bytes() + b"\0\0trailing")
        ImageFiles(paths, 8, remedy=REMEDY).check()


def test_other_formats_are_decoded_to_be_checked(tmp_path):
    picture().save(tmp_path / "x.bmp")
    ImageFiles([tmp_path / "x.bmp"], 8, remedy=REMEDY).check()


def test_no_image_starts_another_program(tmp_path, monkeypatch):
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    (tmp_path / "x.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nshowpage\n")
    with pytest.raises(DatasetCorruptError, match=r"x\.png"):
        ImageFiles([tmp_path / "x.png"], 8, remedy=REMEDY).check()
    assert not (tmp_path / "ran").exists()
