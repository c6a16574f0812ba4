"""Which of a model's weights clients train, where that is not all of them."""
