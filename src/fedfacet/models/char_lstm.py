"""A recurrent network over characters."""

from collections.abc import Sequence

from torch import Tensor, nn

from fedfacet.arguments import check_within
from fedfacet.models.base import Network


class CharLSTM(Network):
    """An embedding, one or two LSTM layers with dropout after each, and a linear head on the state after the last character.

    Inputs are rows of characters, numbered in the same alphabet as the classes.

    Source: De Cesare et al., Federated Learning Beyond Uniform Participation, section 2, which says two layers with dropout;
    the sizes are those of its released code, which has one layer and no dropout (``num_layers=1 dropout=0``). The rate of the
    dropout is ours.

    Note: layers are modules of their own with dropout between them, instead of one ``nn.LSTM`` of two layers: on a GPU the
    dropout inside that draws from a state which outlives a client, so that results would depend on who was trained before.

    Args:
        num_classes: Y, the size of the alphabet.
        input_shape: (T,), the characters of a row, 1 or more.
        embedding_size: 1 or larger.
        hidden_size: of each layer, which is what ``features`` returns, 1 or larger.
        num_layers: 1 or 2.
        dropout: probability in [0, 1).
    """

    def __init__(
        self,
        num_classes: int,
        input_shape: Sequence[int],
        *,
        embedding_size: int = 32,
        hidden_size: int = 128,
        num_layers: int = 2,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        if len(input_shape) != 1 or input_shape[0] < 1:
            raise ValueError(
                f"Expected rows of characters, but got inputs of shape {tuple(input_shape)}: choose another `model`, or "
                "`dataset=shakespeare`."
            )
        if min(embedding_size, hidden_size) < 1 or num_layers not in (1, 2):
            raise ValueError(
                "Expected `model.embedding_size` and `model.hidden_size` to be 1 or larger and `model.num_layers` 1 or 2, but "
                f"got {embedding_size}, {hidden_size} and {num_layers}."
            )
        check_within("model.dropout", dropout, "[0, 1)")
        self.embedding = nn.Embedding(num_classes, embedding_size)
        widths = [embedding_size] + [hidden_size] * num_layers
        self.layers = nn.ModuleList(nn.LSTM(width, hidden_size, batch_first=True) for width in widths[:-1])
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden_size, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Return what the head sees, shape (B, hidden_size), of rows of characters, integers of shape (B, T)."""
        states: Tensor = self.embedding(x.long())
        for layer in self.layers:
            states = self.dropout(layer(states)[0])
        return states[:, -1]
