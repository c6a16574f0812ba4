"""The contract of what makes models private."""


class Privacy:
    """Noise that hides samples or whole clients in the models: at the clients (``DPSGD``) or at the server (``CentralDP``)."""
