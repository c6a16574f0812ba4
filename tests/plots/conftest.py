"""What tests of pictures look at them with."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image


@pytest.fixture(scope="session")
def area():
    """Return a function: a picture, colours -> the number of pixels that have one of these, each rounded up or down."""

    def count(path, *colours):
        with Image.open(path) as picture:
            channels = np.moveaxis(np.asarray(picture.convert("RGB")), 2, 0).copy()
        found = np.zeros(channels.shape[1:], dtype=bool)
        for colour in colours:
            bounds = np.round(255 * np.array(to_rgb(colour)), 6)
            near = [(c >= low) & (c <= high) for c, low, high in zip(channels, np.floor(bounds), np.ceil(bounds), strict=True)]
            found |= near[0] & near[1] & near[2]
        return int(found.sum())

    return count
