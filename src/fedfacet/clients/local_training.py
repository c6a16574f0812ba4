"""How much a client trains in a round, and on which batches."""

from dataclasses import dataclass

from fedfacet.arguments import check_choice, check_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """How much a client trains in a round, and on which batches.

    Attributes:
        unit: whether ``amount`` counts ``"epochs"`` or ``"steps"``.
        amount: local epochs or optimizer steps, 1 or larger.
        batch_size: 1 or larger; the last batch of an epoch may be short.
        sampling: ``"without_replacement"`` visits every sample once an epoch; ``"with_replacement"`` draws n_k samples anew
            each epoch (as FedDiverse's released code does).
        max_grad_norm: gradients are scaled down to this l2 norm; ``None`` for never.
        keep_optimizer: have a client's optimizer go on where it was after the client's last round (its momentum, say), instead
            of anew.

    Raises:
        ValueError: if a value is out of range.
    """

    unit: str = "epochs"
    amount: int = 1
    batch_size: int = 28
    sampling: str = "without_replacement"
    max_grad_norm: float | None = None
    keep_optimizer: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        check_choice("local.unit", self.unit, ("epochs", "steps"))
        check_whole("local.amount", self.amount)
        check_whole("local.batch_size", self.batch_size)
        check_choice("local.sampling", self.sampling, ("without_replacement", "with_replacement"))
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ValueError(f"Expected `local.max_grad_norm` to be larger than 0 or null, but got {self.max_grad_norm}.")
