import matplotlib.image
import pytest

from fedfacet.metrics.estimation import Triplets
from fedfacet.plots.triplets import plot_estimation


@pytest.mark.parametrize("num_clients", [1, 2, 100])
def test_a_picture_of_any_number_of_clients(tmp_path, num_clients):
    true = [(k / 100, 1 - k / 100, 0.5) for k in range(num_clients)]
    file = tmp_path / "out" / "heterogeneity.png"
    plot_estimation(Triplets.of(true, {k: [k / 100, 0.5, 1.0] for k in range(num_clients)}), file)
    picture = matplotlib.image.imread(file)
    height, width = picture.shape[:2]
    assert width > 2 * height
    blue = (picture[..., 2] > picture[..., 0] + 0.3).any(axis=0)
    for panel in range(3):
        assert blue[panel * width // 3 : (panel + 1) * width // 3].any(), "a bubble in every panel"
